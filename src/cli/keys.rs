//! `midstream keys`: the API keys of a data folder, which a server may be running on.
//!
//! Standard output carries the data and nothing else, standard error what is said about it. The secret of a key is
//! written once, when it is created.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::access::{Error, Key, KeyFile, Limits, NewKey, Secret, create, revoke};
use crate::clock::{Clock, rfc3339};
use crate::config::{Config, Flags};
use crate::crash;
use crate::ids::FreshIds;

/// What else there is to know.
const ABOUT: &str = "\
Clients send a key as `Authorization: Bearer KEY` or `x-api-key: KEY`. As soon as one was created every request needs
one; a running server sees each change with the next request, and upon SIGHUP. Of a key only a hash is kept.
They are kept in the server's data folder: run this where the server was started, or name the folder by --data-dir.

  midstream keys create laptop
  midstream keys create ci --tenant builds --requests-per-minute 60 --tokens-per-minute 200000
  midstream keys create me --principal local     # owns what was there before the first key
  midstream keys list
  midstream keys revoke ci";

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = ABOUT)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a key, and write it to standard output this once
    Create(Create),
    /// Write a line about each key
    List(Place),
    /// Take a key away; requests with it are refused from then on
    Revoke(Revoke),
}

#[derive(Args, Debug)]
struct Create {
    /// What to call it
    #[arg(value_name = "NAME")]
    name: String,
    /// Whose conversations it reaches; several keys may have the same principal [default: one of its own]
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// With whom its prompts may share the cache [default: its principal's tenant, else `default`]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Most requests that use a model, in any minute [default: no bound]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests_per_minute: Option<u64>,
    /// Most tokens of prompts and answers, in any minute [default: no bound]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tokens_per_minute: Option<u64>,
    /// Most responses at once [default: no bound]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    concurrent_responses: Option<u64>,
    #[command(flatten)]
    place: Place,
}

#[derive(Args, Debug)]
struct Revoke {
    /// The key's name or id
    #[arg(value_name = "NAME|ID")]
    key: String,
    #[command(flatten)]
    place: Place,
}

/// Which keys, and how to write about them.
#[derive(Args, Debug)]
struct Place {
    /// Write JSON
    #[arg(long)]
    json: bool,
    /// Where conversations are kept, and with them the keys [default: midstream-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The settings' file [default: midstream.toml, where it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Place {
    fn folder(&self) -> anyhow::Result<PathBuf> {
        let flags = Flags { data_dir: self.data_dir.clone(), ..Flags::default() };
        Ok(Config::load(self.config.as_deref(), super::serve::variables(), flags)?.data_dir)
    }

    /// The keys of a folder that is there: only the first key may make one.
    fn file(&self) -> anyhow::Result<KeyFile> {
        let folder = self.folder()?;
        let shown = folder.display();
        anyhow::ensure!(folder.is_dir(), "{shown} is no data folder of midstream's; name one with --data-dir");
        Ok(KeyFile::of(&folder))
    }
}

/// Does what is asked.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<()> {
    crash::check().map_err(anyhow::Error::msg)?;
    match arguments.action {
        Action::Create(arguments) => create_key(arguments),
        Action::List(place) => list(&place),
        Action::Revoke(Revoke { key, place }) => {
            let (gone, left) = place.file()?.change(|keys| Ok((revoke(keys, &key)?, keys.len())))?;
            if place.json {
                return write_json(&shown(&gone));
            }
            say(format_args!("{} ({}) is revoked; what its principal owns stays", gone.name, gone.id))?;
            if left == 0 {
                say(format_args!("no key is left: every request is refused until one is created"))?;
            }
            Ok(())
        }
    }
}

fn create_key(arguments: Create) -> anyhow::Result<()> {
    let Create { name, principal, tenant, place, .. } = arguments;
    let limits = Limits {
        requests_per_minute: arguments.requests_per_minute,
        tokens_per_minute: arguments.tokens_per_minute,
        concurrent_responses: arguments.concurrent_responses,
    };
    let secret = Secret::draw().map_err(Error::Random)?;
    let (new, now_s) = (NewKey { name, principal, tenant, limits }, Clock::System.unix_ms() / 1000);
    let folder = place.folder()?;
    let (key, count) = KeyFile::of(&folder).change(|keys| {
        let key = create(keys, new, &secret, now_s, &mut FreshIds::random())?;
        Ok((key, keys.len()))
    })?;
    if place.json {
        let mut created = shown(&key);
        created["key"] = secret.reveal().into();
        return write_json(&created);
    }
    writeln!(io::stdout(), "{}", secret.reveal()).context("the key is created, but cannot be shown; revoke it")?;
    say(format_args!(
        "{} ({}) is created; the key is shown this once, and only a hash of it is kept",
        key.name, key.id
    ))?;
    if count == 1 {
        let shown = folder.display();
        say(format_args!("it is the first of {shown}: a server with this data folder asks for a key from now on"))?;
    }
    Ok(())
}

fn list(place: &Place) -> anyhow::Result<()> {
    let keys = place.file()?.read()?;
    if place.json {
        return write_json(&keys.unwrap_or_default().iter().map(shown).collect());
    }
    let Some(keys) = keys else {
        return say(format_args!("no key was created yet: whoever reaches the server may use it"));
    };
    let mut out = io::stdout().lock();
    for key in &keys {
        let Key { id, name, principal, tenant, .. } = key;
        let (created, limits) = (rfc3339(key.created_at), in_words(&key.limits));
        writeln!(out, "{name}  {id}  created {created}  principal {principal}  tenant {tenant}{limits}")?;
    }
    Ok(())
}

/// The limits behind the rest of a line.
fn in_words(limits: &Limits) -> String {
    [
        (limits.requests_per_minute, "requests/min"),
        (limits.tokens_per_minute, "tokens/min"),
        (limits.concurrent_responses, "at once"),
    ]
    .into_iter()
    .filter_map(|(limit, unit)| Some(format!("  {} {unit}", limit?)))
    .collect()
}

/// A key as JSON, without what is kept of its secret.
fn shown(key: &Key) -> Value {
    json!({
        "id": key.id,
        "name": key.name,
        "created_at": key.created_at,
        "principal": key.principal,
        "tenant": key.tenant,
        "limits": key.limits,
    })
}

fn write_json(value: &Value) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout(), "{value}")?)
}

fn say(text: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    Ok(writeln!(io::stderr(), "{text}")?)
}
