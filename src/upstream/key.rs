//! The key of an upstream: read from a variable or a file, put into one header, and never shown.

use std::path::Path;

use hyper::header::HeaderValue;

use super::SetupError;
use crate::config::UpstreamConfig;

/// What stands in a text where the key stood.
const REDACTED: &str = "[key]";

/// A key. It has no `Display`, and what is printed of it says nothing.
#[derive(Clone)]
pub(super) struct ApiKey(String);

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(REDACTED)
    }
}

impl ApiKey {
    /// The key that the settings name, if they name one; `variable` looks into the environment.
    pub(super) fn read(
        config: &UpstreamConfig,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SetupError> {
        let (key, place) = match (&config.api_key_env, &config.api_key_file) {
            (Some(name), _) => {
                let key = variable(name).ok_or_else(|| SetupError::NoKey(format!("the variable {name} is not set")))?;
                (key, format!("the variable {name}"))
            }
            (None, Some(path)) => (read_file(path)?, format!("the file {}", path.display())),
            (None, None) => return Ok(None),
        };
        let key = key.trim();
        let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        is_key.then(|| Some(Self(key.to_owned()))).ok_or_else(|| SetupError::NoKey(format!("{place} holds no key")))
    }

    /// The value of `Authorization`.
    pub(super) fn bearer(&self) -> Option<HeaderValue> {
        sensitive(&format!("Bearer {}", self.0))
    }

    /// The value of a header that has nothing but the key.
    pub(super) fn bare(&self) -> Option<HeaderValue> {
        sensitive(&self.0)
    }

    /// The text without the key, for whatever an upstream repeats.
    pub(super) fn redact(&self, text: &str) -> String {
        text.replace(&self.0, REDACTED)
    }
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn read_file(path: &Path) -> Result<String, SetupError> {
    let unreadable = |error| SetupError::NoKey(format!("the file {} cannot be read: {error}", path.display()));
    std::fs::read_to_string(path).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &UpstreamConfig) -> Result<Option<ApiKey>, String> {
        let variable = |name: &str| match name {
            "KEY" => Some(" sk-secret\n".to_owned()),
            "EMPTY" => Some("\n".to_owned()),
            "TWO" => Some("sk-secret sk-other".to_owned()),
            _ => None,
        };
        ApiKey::read(config, variable).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_comes_from_a_variable_or_a_file_and_is_never_printed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "sk-secret\n").unwrap();
        let named = |name: &str| UpstreamConfig { api_key_env: Some(name.to_owned()), ..UpstreamConfig::default() };
        let filed = UpstreamConfig { api_key_file: Some(path), ..UpstreamConfig::default() };
        for config in [named("KEY"), filed] {
            let key = read(&config).unwrap().unwrap();
            assert_eq!(key.bearer().unwrap().as_bytes(), b"Bearer sk-secret");
            assert_eq!(key.bare().unwrap().as_bytes(), b"sk-secret");
            let printed = format!("{key:?} {:?} {:?}", key.bearer(), key.bare());
            assert_eq!(printed, "[key] Some(Sensitive) Some(Sensitive)");
            assert_eq!(key.redact("Incorrect key: sk-secret!"), "Incorrect key: [key]!");
        }
        assert!(read(&UpstreamConfig::default()).unwrap().is_none());
        for name in ["EMPTY", "TWO", "NONE"] {
            let refusal = read(&named(name)).unwrap_err();
            assert!(refusal.contains(name) && !refusal.contains("sk-"), "{refusal}");
        }
    }
}
