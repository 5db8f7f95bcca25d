//! Who asks. Without configured keys any credential, or none, is accepted; the server then listens on loopback only.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

/// The one principal of a server without keys.
const LOCAL: &str = "local";

/// Whose conversations a request may see.
#[derive(Clone, Debug)]
pub(crate) struct Principal(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = Infallible;

    async fn from_request_parts(_parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(Self(LOCAL.to_owned()))
    }
}
