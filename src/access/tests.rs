//! Keys in their file, at the gate, and what their principals use.

use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::usage::{Over, Room, Usage};
use super::*;
use crate::ids::FreshIds;

/// A data folder and its keys.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> KeyFile {
        KeyFile::of(self.0.path())
    }

    fn create(&self, new: NewKey) -> Result<(Secret, Key), Error> {
        let secret = Secret::draw().unwrap();
        let key = self.file().change(|keys| create(keys, new, &secret, 7, &mut FreshIds::random()))?;
        Ok((secret, key))
    }

    fn named(&self, name: &str) -> (Secret, Key) {
        self.create(NewKey { name: name.to_owned(), ..NewKey::default() }).unwrap()
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.0.path().join("keys.json")).unwrap()
    }
}

#[test]
fn a_key_is_recognisable_long_and_kept_as_a_hash_for_nobody_else_to_read() {
    let site = Site::new();
    let (secret, key) = site.named("ci");
    assert!(secret.reveal().starts_with("ms_") && secret.reveal().len() == 3 + 43, "32 bytes in base64");
    assert!(!site.text().contains(&secret.reveal()[3..]), "{}", site.text());
    assert!(!format!("{secret:?}{key:?}").contains(&secret.reveal()[3..]));
    let mode = std::fs::metadata(site.0.path().join("keys.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_ne!(site.named("other").0.reveal(), secret.reveal());
}

#[test]
fn a_key_has_a_principal_of_its_own_unless_it_is_given_one_whose_tenant_it_shares() {
    let site = Site::new();
    let (_, own) = site.named("own");
    assert_eq!((&own.principal, own.tenant.as_str()), (&own.id, DEFAULT_TENANT));
    let new = |name: &str, principal: &str, tenant: Option<&str>| NewKey {
        name: name.to_owned(),
        principal: Some(principal.to_owned()),
        tenant: tenant.map(str::to_owned),
        ..NewKey::default()
    };
    let (_, first) = site.create(new("first", "ann", Some("red"))).unwrap();
    let (_, second) = site.create(new("second", "ann", None)).unwrap();
    assert_eq!((first.tenant, second.tenant.as_str()), ("red".to_owned(), "red"));
    let refused = site.create(new("third", "ann", Some("blue"))).unwrap_err();
    assert!(refused.to_string().contains("ann belongs to the tenant red"), "{refused}");
    let refused = site.create(new("own", "eve", None)).unwrap_err();
    assert!(refused.to_string().contains("a key named own already"), "{refused}");
    for wrong in ["", "a b", "x".repeat(65).as_str(), "\u{e9}"] {
        assert!(matches!(site.create(new(wrong, "p", None)), Err(Error::Name { what: "name", .. })), "{wrong}");
    }
}

#[test]
fn a_refused_change_and_one_that_finds_no_keys_of_ours_leave_the_file_as_it_was() {
    let site = Site::new();
    site.named("ci");
    let before = site.text();
    let unknown = site.file().change(|keys| revoke(keys, "nobody")).unwrap_err();
    assert!(unknown.to_string().contains("no key has the name or id nobody"));
    assert_eq!(site.text(), before);
    for foreign in ["", "{}", "{\"version\": 2, \"keys\": []}", "[1]"] {
        std::fs::write(site.0.path().join("keys.json"), foreign).unwrap();
        let refused = site.file().change(|keys| revoke(keys, "ci")).unwrap_err();
        assert!(matches!(refused, Error::Unreadable { .. }), "{refused}");
        assert_eq!(site.text(), foreign);
    }
}

#[test]
fn the_gate_sees_a_change_of_the_file_with_the_next_client() {
    let site = Site::new();
    let gate = Gate::open(site.0.path()).unwrap();
    assert!(!gate.is_locked());
    assert_eq!(gate.identify(["anything"]), Some(Identity::local()));
    assert_eq!(gate.identify([]), Some(Identity::local()));

    let (secret, key) = site.named("ci");
    let identity = gate.identify(["wrong", secret.reveal()]).unwrap();
    assert_eq!((identity.principal.as_str(), identity.key), (key.id.as_str(), Some(key.id.clone())));
    assert!(gate.is_locked() && !identity.shares, "it is alone");
    for wrong in ["", "ms_", &secret.reveal()[..45], &format!("{} ", secret.reveal())] {
        assert_eq!(gate.identify([wrong]), None);
    }
    assert_eq!(gate.identify([]), None);

    let (other, _) = site.named("other");
    assert!(gate.identify([other.reveal()]).unwrap().shares);
    site.file().change(|keys| revoke(keys, "ci")).unwrap();
    assert_eq!(gate.identify([secret.reveal()]), None);
    site.file().change(|keys| revoke(keys, "other")).unwrap();
    assert_eq!(gate.identify([other.reveal()]), None, "the last key that goes opens nothing");
    assert_eq!(gate.identify([]), None);
}

#[test]
fn a_file_that_is_gone_or_damaged_opens_nothing() {
    let site = Site::new();
    let (secret, _) = site.named("ci");
    let gate = Gate::open(site.0.path()).unwrap();
    std::fs::write(site.0.path().join("keys.json"), "{").unwrap();
    assert!(gate.identify([secret.reveal()]).is_some() && gate.identify(["x"]).is_none());
    std::fs::remove_file(site.0.path().join("keys.json")).unwrap();
    gate.reload();
    assert!(gate.identify([secret.reveal()]).is_some() && gate.identify(["x"]).is_none());
    std::fs::write(site.0.path().join("keys.json"), "{").unwrap();
    assert!(Gate::open(site.0.path()).is_err(), "and a start refuses to guess");
}

#[tokio::test]
async fn whoever_was_let_in_by_a_key_that_goes_hears_of_it() {
    let site = Site::new();
    let gate = Gate::open(site.0.path()).unwrap();
    let local = gate.identify([]).unwrap();
    let (secret, _) = site.named("ci");
    let identity = gate.identify([secret.reveal()]).unwrap();
    gate.closed_to(&local).await;
    let closed = gate.closed_to(&identity);
    site.file().change(|keys| revoke(keys, "ci")).unwrap();
    gate.reload();
    closed.await;
}

fn somebody(limits: Limits) -> Identity {
    Identity { principal: "ann".to_owned(), key: Some("key_1".to_owned()), limits, ..Identity::local() }
}

#[test]
fn requests_and_tokens_of_a_minute_have_their_bounds() {
    let usage = Usage::default();
    let who = somebody(Limits { requests_per_minute: Some(2), tokens_per_minute: Some(100), ..Limits::default() });
    let take = |who: &Identity, now_s| usage.take_at(who, Room::Work, 10, now_s).map(drop);
    assert_eq!((take(&who, 5), take(&who, 10)), (Ok(()), Ok(())));
    assert_eq!(take(&who, 11), Err(Over::Requests { limit: 2, wait_s: 54 }));
    assert!(usage.take_at(&who, Room::Reading, 10, 11).is_ok(), "readers are no requests");
    let over = Err(Over::Requests { limit: 2, wait_s: 54 });
    assert_eq!(usage.take_at(&who, Room::Counting, 10, 11).map(drop), over, "those who count are");
    assert_eq!(take(&who, 65), Ok(()), "a refused request counts for nothing");
    assert_eq!(take(&Identity { principal: "bob".to_owned(), ..who.clone() }, 11), Ok(()));

    let tokens = somebody(Limits { tokens_per_minute: Some(100), ..Limits::default() });
    let running = usage.run("ann");
    running.spend(60);
    assert_eq!(usage.take(&tokens, Room::Work, 10).map(drop), Ok(()));
    running.spend(60);
    let over = usage.take(&tokens, Room::Work, 10).unwrap_err();
    assert!(matches!(over, Over::Tokens { limit: 100, wait_s: 1..=60 }), "{over:?}");
    let (requests, standing) = usage.standing(&tokens);
    assert_eq!((requests, standing.unwrap().remaining), (None, 0));
}

#[test]
fn responses_count_while_they_are_asked_for_and_while_they_run() {
    let usage = Usage::default();
    let who = somebody(Limits { concurrent_responses: Some(2), ..Limits::default() });
    let mut first = usage.take(&who, Room::Work, 10).unwrap();
    let running = (usage.run("ann"), usage.run("ann"));
    let over = Err(Over::Responses { limit: 2 });
    assert_eq!(usage.take(&who, Room::Work, 10).map(drop), over);
    assert!(usage.take(&who, Room::Counting, 10).is_ok(), "a count has no response");
    drop(running);
    assert_eq!(usage.take_more(&who, &mut first, 10), Ok(()), "a second choice is a response, too");
    assert_eq!(usage.take_more(&who, &mut first, 10), Err(Over::Responses { limit: 2 }));
    assert_eq!(usage.take(&who, Room::Work, 10).map(drop), over);
    drop(first);
    assert_eq!(usage.take(&who, Room::Work, 10).map(drop), Ok(()));
}

#[test]
fn whoever_comes_first_leaves_room_for_the_next_where_there_are_others() {
    const ALL: usize = 64;
    let usage = Usage::default();
    let of = |name: &str| Identity { principal: name.to_owned(), shares: true, ..Identity::local() };
    let mut free = ALL;
    let mut take_all = |who: &Identity, room| {
        let mut held = Vec::new();
        while let Ok(one) = usage.take(who, room, free) {
            free -= 1;
            held.push(one);
        }
        held
    };
    let first = take_all(&of("ann"), Room::Work);
    let second = take_all(&of("bob"), Room::Work);
    let third = take_all(&of("eve"), Room::Work);
    assert_eq!((first.len(), second.len()), (48, 12), "three quarters of all, and of what was left");
    assert!(!third.is_empty());
    assert_eq!(usage.take(&of("ann"), Room::Work, 2).map(drop), Err(Over::Share));
    assert!(usage.take(&of("ann"), Room::Reading, 2).is_ok(), "readers have room of their own");
    let alone = Identity { shares: false, ..of("ann") };
    assert!(usage.take(&alone, Room::Work, 1).is_ok());
    assert!(usage.take(&of("new"), Room::Work, 1).is_ok(), "everybody may have one");
}
