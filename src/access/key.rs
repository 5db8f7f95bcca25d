//! One API key as it is kept, and how the list of keys changes. Pure.

use serde::{Deserialize, Serialize};

use super::Error;
use super::limits::Limits;
use super::secret::{Hash, Secret};
use crate::ids::{FreshIds, ItemId};

/// The principal of a server that asks nobody for a key.
pub const LOCAL: &str = "local";
/// The tenant of whoever names none.
pub const DEFAULT_TENANT: &str = "default";

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// An API key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Names it for ever.
    pub id: String,
    /// What an operator calls it.
    pub name: String,
    /// When it was created, in seconds since the Unix epoch.
    pub created_at: u64,
    /// Whose conversations it reaches.
    pub principal: String,
    /// With whom its prompts may share keys and values of attention.
    #[serde(default = "default_tenant")]
    pub tenant: String,
    /// How much it may use.
    #[serde(default)]
    pub limits: Limits,
    /// What is kept of its secret.
    sha256: Hash,
}

fn default_tenant() -> String {
    DEFAULT_TENANT.to_owned()
}

impl Key {
    pub(super) fn has(&self, hash: &Hash) -> bool {
        self.sha256.matches(hash)
    }
}

/// A key to be created.
#[derive(Clone, Debug, Default)]
pub struct NewKey {
    /// What to call it.
    pub name: String,
    /// Whose conversations it reaches; its own, where nobody is named.
    pub principal: Option<String>,
    /// Where it belongs; where its principal does, if none is named.
    pub tenant: Option<String>,
    /// How much it may use.
    pub limits: Limits,
}

/// Adds a key with this secret.
pub fn create(
    keys: &mut Vec<Key>,
    new: NewKey,
    secret: &Secret,
    created_at: u64,
    fresh: &mut FreshIds,
) -> Result<Key, Error> {
    let NewKey { name, principal, tenant, limits } = new;
    let id = ItemId::draw(fresh).wire("key");
    let principal = principal.unwrap_or_else(|| id.clone());
    let named = [("name", Some(&name)), ("principal", Some(&principal)), ("tenant", tenant.as_ref())];
    for (what, text) in named.into_iter().filter_map(|(what, text)| Some((what, text?))) {
        if !is_name(text) {
            return Err(Error::Name { what, text: text.clone() });
        }
    }
    if keys.iter().any(|key| key.name == name) {
        return Err(Error::NameTaken(name));
    }
    let home = keys.iter().find(|key| key.principal == principal).map(|key| key.tenant.clone());
    let tenant = match (home, tenant) {
        (Some(home), Some(other)) if home != other => return Err(Error::OtherTenant { principal, tenant: home }),
        (home, tenant) => home.or(tenant).unwrap_or_else(default_tenant),
    };
    let sha256 = Hash::of(secret.reveal());
    let key = Key { id, name, created_at, principal, tenant, limits, sha256 };
    keys.push(key.clone());
    Ok(key)
}

/// Takes the key with this name or id away.
pub fn revoke(keys: &mut Vec<Key>, name: &str) -> Result<Key, Error> {
    let place = keys.iter().position(|key| key.id == name || key.name == name);
    place.map(|place| keys.remove(place)).ok_or_else(|| Error::Unknown(name.to_owned()))
}

fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed)
}
