//! The settings among the environment's variables: which of them are ours, and what their texts stand for.
//! It reads no variable itself.

use figment::value::{Dict, Map, Value};

/// Variables with the prefix that are read elsewhere and are no settings; so are those of the project's own tests.
const OTHER_VARIABLES: [&str; 6] = ["api_key", "isa", "cache_dir", "log", "crash", "crash_log"];

/// Settings whose text is taken as it is, even where it looks like a number.
const TEXT_SETTINGS: [&str; 8] =
    ["listen", "tls_cert_file", "tls_key_file", "data_dir", "scripted", "chat_template", "tool_format", "reasoning"];

/// Settings that hold several texts, separated by commas in a variable.
pub(super) const LIST_SETTINGS: [&str; 2] = ["models", "allowed_origins"];

/// The settings among the environment's variables.
#[derive(Clone)]
pub(super) struct Variables(Dict);

impl Variables {
    pub(super) fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let settings = variables.into_iter().filter_map(|(name, text)| {
            let name = name.strip_prefix("MIDSTREAM_")?.to_lowercase();
            // A container platform describes a service named midstream by such variables.
            let of_the_platform = name.starts_with("service_") || name == "port" || name.starts_with("port_");
            let of_tests = name.starts_with("test_") || name.starts_with("sim_");
            if of_the_platform || of_tests || OTHER_VARIABLES.contains(&name.as_str()) {
                return None;
            }
            let value = variable_value(&name, &text);
            Some((name, value))
        });
        Self(settings.collect())
    }

    /// Whether a setting is among them.
    pub(super) fn has(&self, setting: &str) -> bool {
        self.0.contains_key(setting)
    }
}

fn variable_value(name: &str, text: &str) -> Value {
    if LIST_SETTINGS.contains(&name) {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        Value::from(parts.map(Value::from).collect::<Vec<_>>())
    } else if TEXT_SETTINGS.contains(&name) {
        Value::from(text)
    } else {
        text.parse().unwrap_or_else(|never: std::convert::Infallible| match never {})
    }
}

impl figment::Provider for Variables {
    fn metadata(&self) -> figment::Metadata {
        figment::Metadata::named("the environment")
            .interpolater(|_, keys| format!("MIDSTREAM_{}", keys.join("_").to_uppercase()))
    }

    fn data(&self) -> Result<Map<figment::Profile, Dict>, figment::Error> {
        Ok(figment::Profile::Default.collect(self.0.clone()))
    }
}
