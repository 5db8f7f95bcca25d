//! `GET /v1/responses` as a WebSocket: OpenAI's socket, whose lanes run side by side.
//!
//! A request for a response names its lane by `stream_id`, or has the one without a name. In a lane responses run one
//! after the other, in the order in which they were asked for. What is said about a response goes to its lane.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use serde_json::Value;

use super::lane::{Lane, label};
use crate::access::Identity;
use crate::actors::ConversationHandle;
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::errors::{self, OpenAiError, invalid};
use crate::api::socket::{self, Outbox, Speaker};
use crate::conversation::Reject;
use crate::error::Code;
use crate::ids::{ConversationId, ResponseId};

/// Most lanes of one socket that have names.
const NAMED_LANES_MAX: usize = 32;
/// Most responses of one socket that run or wait for their turn.
const IN_FLIGHT_MAX: usize = 16;
/// Longest name of a lane, in bytes.
const STREAM_ID_BYTES_MAX: usize = 256;

/// `GET /v1/responses`
pub(crate) async fn upgrade(
    State(app): State<App>,
    Principal(principal): Principal,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, OpenAiError> {
    if upgrade.is_err() {
        let text = "GET /v1/responses is a WebSocket; create a response with POST, get one with GET and its id";
        return Err(Reject::new(Code::MethodNotAllowed, text).into());
    }
    if !app.limits.responses_ws {
        let text = "responses over WebSocket are switched off here; use POST /v1/responses";
        return Err(Reject::new(Code::UpgradeRequired, text).into());
    }
    let session = |app, principal, outbox| Session { app, principal, outbox, lanes: Mutex::default() };
    Ok(socket::accept(app, principal, upgrade, session)?)
}

/// What the requests of one socket share.
struct Session {
    app: App,
    principal: Identity,
    outbox: Outbox,
    /// In the order in which they were first named.
    lanes: Mutex<Vec<(Option<String>, Arc<Lane>)>>,
}

impl Speaker for Session {
    fn begin(&self, frame: &Value) -> Result<Option<u64>, Reject> {
        if frame["type"] != "response.create" {
            return Ok(None);
        }
        let in_flight: usize = self.lanes().iter().map(|(_, lane)| lane.in_flight()).sum();
        if in_flight >= IN_FLIGHT_MAX {
            let text = format!("{IN_FLIGHT_MAX} responses of this socket run or wait; let some end, or use another");
            return Err(Reject::new(Code::WebsocketStreamLimitReached, text));
        }
        // One that waits has been read whole: it counts as one that runs.
        let permit = self.app.admit(&self.principal)?;
        Ok(Some(self.lane(frame)?.line_up(permit)))
    }

    async fn perform(
        self: &Arc<Self>,
        frame: &Value,
        event_id: Option<&str>,
        took: Option<u64>,
    ) -> Result<Option<Value>, Reject> {
        let (lane, told) = match (frame["type"].as_str(), took) {
            (Some("response.create"), Some(ticket)) => {
                let lane = self.lane(frame)?;
                Box::pin(lane.create(frame, event_id, ticket, || self.unstored(&lane))).await?;
                (lane, None)
            }
            (Some("response.steer"), _) => {
                let lane = self.lane_of(&frame["previous_response_id"]).await;
                let told = lane.steer(frame, event_id).await;
                (lane, told)
            }
            (Some("response.interrupt"), _) => {
                let lane = self.lane_of(&frame["response_id"]).await;
                let told = lane.interrupt(frame, event_id).await;
                (lane, told)
            }
            (Some("response.inject"), _) => {
                let lane = self.lane_of(&frame["response_id"]).await;
                let told = lane.inject(frame, event_id).await;
                (lane, told)
            }
            (Some("response.cancel"), _) => {
                let names_response = frame.get("response_id").is_some_and(|id| !id.is_null());
                let lane = if names_response { self.lane_of(&frame["response_id"]).await } else { self.lane(frame)? };
                let told = lane.cancel(frame, event_id).await;
                (lane, told.unwrap_or_else(|reject| Some(errors::frame(reject, event_id))))
            }
            (kind, _) => return Err(errors::unknown_frame(kind)),
        };
        Ok(told.map(|told| lane.labelled(told)))
    }

    fn life(&self) -> Option<Duration> {
        self.app.limits.responses_ws_life
    }

    fn refused(&self, frame: &Value, error: &mut Value) {
        label(error, frame["stream_id"].as_str());
    }

    fn is_idle(&self) -> bool {
        self.lanes().iter().all(|(_, lane)| lane.is_idle())
    }
}

impl Session {
    fn lanes(&self) -> MutexGuard<'_, Vec<(Option<String>, Arc<Lane>)>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane that the frame names; it is there from its first request on.
    fn lane(&self, frame: &Value) -> Result<Arc<Lane>, Reject> {
        let name = match &frame["stream_id"] {
            Value::Null => None,
            Value::String(name) if (1..=STREAM_ID_BYTES_MAX).contains(&name.len()) => Some(name.as_str()),
            _ => {
                let text = format!("stream_id must be a string of 1 to {STREAM_ID_BYTES_MAX} bytes, or be left out");
                return Err(invalid("stream_id", text));
            }
        };
        let lanes = self.lanes();
        let is_new = lanes.iter().all(|(other, _)| other.as_deref() != name);
        let names = lanes.iter().filter(|(name, _)| name.is_some()).count();
        drop(lanes);
        if name.is_some() && is_new && names >= NAMED_LANES_MAX {
            let text = format!("this socket has {NAMED_LANES_MAX} streams already; use one of them, or another socket");
            return Err(Reject::new(Code::WebsocketStreamLimitReached, text).param("stream_id"));
        }
        Ok(self.open(name))
    }

    /// The lane with this name, there from now on.
    fn open(&self, name: Option<&str>) -> Arc<Lane> {
        let mut lanes = self.lanes();
        if let Some((_, lane)) = lanes.iter().find(|(other, _)| other.as_deref() == name) {
            return Arc::clone(lane);
        }
        let (app, principal, outbox) = (self.app.clone(), self.principal.clone(), self.outbox.clone());
        let name = name.map(str::to_owned);
        let lane = Arc::new(Lane::new(app, principal, outbox, lanes.len(), name.clone()));
        lanes.push((name, Arc::clone(&lane)));
        lane
    }

    /// The lane that shows the response, else the one that follows its conversation or did last, else the one without a
    /// name.
    async fn lane_of(&self, id: &Value) -> Arc<Lane> {
        let lanes: Vec<_> = self.lanes().iter().map(|(_, lane)| Arc::clone(lane)).collect();
        if let Some(id) = id.as_str().and_then(|id| id.parse::<ResponseId>().ok()) {
            if let Some(lane) = lanes.iter().find(|lane| lane.shows(id)) {
                return Arc::clone(lane);
            }
            let home = self.app.directory.of_response(id, &self.principal).await.ok().map(|handle| handle.id());
            let by = |is_home: fn(&Lane, ConversationId) -> bool| {
                home.and_then(|home| lanes.iter().find(|lane| is_home(lane, home)))
            };
            if let Some(lane) = by(Lane::follows).or_else(|| by(Lane::was_last_in)) {
                return Arc::clone(lane);
            }
        }
        self.open(None)
    }

    /// The conversations that are not stored and live here, the one of this lane first.
    fn unstored(&self, own: &Arc<Lane>) -> Vec<ConversationHandle> {
        let others = self.lanes();
        let others = others.iter().map(|(_, lane)| lane).filter(|lane| !Arc::ptr_eq(lane, own));
        std::iter::once(own).chain(others).filter_map(|lane| lane.unstored()).collect()
    }
}
