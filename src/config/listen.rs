//! Where the server listens: how an address is written, and who may reach it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Deserializer};

use super::{Config, Error};

impl Config {
    /// Refuses to be open to the network where nobody is asked for a key.
    pub fn check_reach(&self, asks_for_keys: bool) -> Result<(), Error> {
        if asks_for_keys || is_loopback(self.listen.ip()) { Ok(()) } else { Err(Error::OpenToTheNetwork(self.listen)) }
    }
}

/// Whether only this machine reaches the address; an IPv4 address inside IPv6 counts as the IPv4 address.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// The address that was written, where `localhost` is 127.0.0.1; else what to write.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let numeric = text.strip_prefix("localhost:").map(|port| format!("{}:{port}", Ipv4Addr::LOCALHOST));
    let port = text.trim_start_matches(':').parse::<u16>().unwrap_or(8080);
    let parsed = numeric.as_deref().unwrap_or(text).parse();
    parsed.map_err(|_| format!("write ADDRESS:PORT, such as {}:{port}", Ipv4Addr::LOCALHOST))
}

pub(super) fn listen_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    parse_listen(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::super::Flags;
    use super::*;

    fn load(listen: &str) -> Result<Config, Error> {
        Config::load(None, [("MIDSTREAM_LISTEN".to_owned(), listen.to_owned())], Flags::default())
    }

    #[test]
    fn an_address_may_say_localhost_and_must_have_a_port() {
        assert_eq!(load("localhost:81").unwrap().listen.to_string(), "127.0.0.1:81");
        assert_eq!(parse_listen("[::1]:81").unwrap().to_string(), "[::1]:81");
        for (text, port) in [("8081", 8081), (":8081", 8081), ("localhost", 8080), ("localhost:x", 8080)] {
            let wanted = format!("write ADDRESS:PORT, such as 127.0.0.1:{port}");
            assert_eq!(parse_listen(text).unwrap_err(), wanted);
            assert!(load(text).unwrap_err().to_string().ends_with(&wanted));
        }
    }

    #[test]
    fn without_keys_only_loopback_is_listened_on() {
        let reach = |listen: &str, asks_for_keys| load(listen).unwrap().check_reach(asks_for_keys);
        for listen in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80"] {
            let refused = reach(listen, false).unwrap_err().to_string();
            assert!(refused.contains("loopback only") && refused.contains("midstream keys create"), "{refused}");
            assert!(reach(listen, true).is_ok());
        }
        for listen in ["127.0.0.2:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert!(reach(listen, false).is_ok(), "{listen}");
        }
    }
}
