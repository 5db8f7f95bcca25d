//! `midstream config`: whether a server could start with the settings, and which are in force. Nothing is started,
//! fetched or changed.
//!
//! No setting is a secret: keys are named by the variable or the file that holds them, and what is there is not shown.

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::serve::{self, open_tls, variables};
use crate::access::Gate;
use crate::app::{template_text, upstream_engines};
use crate::config::{Config, Origins};
use crate::log;

/// What else there is to know.
const ABOUT: &str = "\
Both take the flags of `midstream serve`, so that what would be served is what is checked and shown.

  midstream config check --config midstream.toml
  midstream config show > everything.toml        # what is in force, as a settings' file
  midstream config show --json | jq .settings.kv_bytes

A check looks at the settings, keys, certificate, script, upstreams and chat templates. It does not look at models, the
journal, nor whether the address is free.

Exit code 0: nothing stands in the way of a start. 1: something does, and standard error says what. 2: the command line
is wrong.";

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = ABOUT)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say whether a server could start with these settings
    Check(Settings),
    /// Write every setting with its value and where it comes from: default, file, environment or flag
    Show(Settings),
}

#[derive(Args, Debug)]
struct Settings {
    /// Write JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    serve: serve::Arguments,
}

/// Does what is asked.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match arguments.action {
        Action::Check(Settings { json, serve }) => {
            let (file, flags) = serve.into_flags();
            let loaded = Config::load_with_origins(file.as_deref(), variables(), flags).map_err(anyhow::Error::new);
            let checked = loaded.and_then(|(config, origins)| check(&config).map(|()| origins));
            told(json, checked, &mut out)
        }
        Action::Show(Settings { json, serve }) => {
            let (file, flags) = serve.into_flags();
            let (config, origins) = Config::load_with_origins(file.as_deref(), variables(), flags)?;
            let settings = serde_json::to_value(config)?;
            let settings = settings.as_object().into_iter().flatten();
            let text = if json { as_json(settings, &origins) } else { as_toml(settings, &origins) };
            Ok(out.write_all(text.as_bytes())?)
        }
    }
}

/// Says how a check ended.
fn told(json: bool, checked: anyhow::Result<Origins>, out: &mut impl Write) -> anyhow::Result<()> {
    match checked {
        Ok(Origins { file, .. }) if json => writeln!(out, "{}", json!({"ok": true, "file": file}))?,
        Ok(Origins { file: Some(file), .. }) => writeln!(out, "the settings of {} can be used", file.display())?,
        Ok(Origins { file: None, .. }) => writeln!(out, "the settings can be used; there is no settings' file")?,
        Err(error) => {
            if json {
                writeln!(out, "{}", json!({"ok": false, "error": super::sentence(&error)}))?;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// What a start would look at, but for models and the journal.
fn check(config: &Config) -> anyhow::Result<()> {
    log::check()?;
    config.check_reach(Gate::open(&config.data_dir)?.is_locked())?;
    open_tls(config)?;
    serve::check_script(config)?;
    upstream_engines(config)?;
    let of_models = config.model.values().filter_map(|model| model.chat_template.as_deref());
    for template in of_models.chain(config.chat_template.as_deref()) {
        template_text(template)?;
    }
    Ok(())
}

fn as_json<'a>(settings: impl Iterator<Item = (&'a String, &'a Value)>, origins: &Origins) -> String {
    let each = settings.map(|(name, value)| (name.clone(), json!({"value": value, "from": origins.of(name)})));
    let all = json!({"file": origins.file, "settings": each.collect::<Map<_, _>>()});
    format!("{all:#}\n")
}

/// A settings' file that sets everything to what is in force.
fn as_toml<'a>(settings: impl Iterator<Item = (&'a String, &'a Value)>, origins: &Origins) -> String {
    let mut text = match &origins.file {
        Some(file) => format!("# The settings in force; their file is {}.\n", file.display()),
        None => "# The settings in force; there is no settings' file.\n".to_owned(),
    };
    for (name, value) in settings {
        let line = match value {
            Value::Null => format!("#{name} is not set\n"),
            value => format!("{name} = {}  # {}\n", toml(value), origins.of(name).as_str()),
        };
        text.push_str(&line);
    }
    text
}

/// A value as TOML writes it: as JSON does, but for tables, in which nothing stands for what is not set.
fn toml(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let set = fields.iter().filter(|(_, value)| !value.is_null());
            let each: Vec<_> = set.map(|(name, value)| format!("{} = {}", Value::from(&**name), toml(value))).collect();
            if each.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", each.join(", ")) }
        }
        Value::Array(values) => format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", ")),
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    fn shown(config: &Config, origins: &Origins) -> String {
        let settings = serde_json::to_value(config).unwrap();
        as_toml(settings.as_object().unwrap().iter(), origins)
    }

    #[test]
    fn what_is_shown_is_a_file_that_sets_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.toml");
        let load = || Config::load_with_origins(Some(&path), [], Flags::default()).unwrap();
        let tables =
            "[model.\"my model\"]\naliases = [\"a\\\\b\"]\nefforts.max.template_kwargs = { deep = true, x = [1.5] }\n";
        let upstream = "[upstream.gpu]\nbase_url = 'http://127.0.0.1:1/v1'\nmodels = ['m']\napi_key_env = 'GPU_KEY'\n";
        std::fs::write(&path, format!("models = ['a', 'b']\nlisten = '127.0.0.1:1'\n{tables}{upstream}")).unwrap();
        let (config, origins) = load();
        assert_eq!(config.model["my model"].aliases, ["a\\b"]);
        let text = shown(&config, &origins);
        std::fs::write(&path, &text).unwrap();
        assert_eq!(load().0, config, "{text}");
        assert!(text.contains("listen = \"127.0.0.1:1\"  # file\n"), "{text}");
        assert!(text.contains("kv_type = \"f16\"  # default\n") && text.contains("#scripted is not set\n"), "{text}");
    }
}
