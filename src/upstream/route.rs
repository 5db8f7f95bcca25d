//! Which of the upstreams that have a model is asked: those of the lowest rank first, and among them the one that the
//! conversation is used to, so that what it computed of the prompt is still there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::affinity::{beginning, drawn};
use super::run::Upstream;
use crate::config::Capabilities;
use crate::prompt::Message;

/// The upstreams that have a model.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// The model, by its name with them.
    pub(super) model: String,
    /// What it can do.
    pub(super) capabilities: Capabilities,
    pub(super) upstreams: Vec<Arc<Upstream>>,
}

/// One of them, as far as one answer is concerned.
pub(super) struct Stop {
    pub(super) upstream: Arc<Upstream>,
    /// Whether it is asked for a stream.
    pub(super) streams: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Untried,
    /// It failed, and may be asked again after so long.
    Failed(Duration),
    /// It will not answer.
    Out,
}

/// The order in which one answer asks, round after round.
pub(super) struct Rounds(Vec<Stop>);

impl Rounds {
    /// The order for a conversation, which is known by how it begins: so it is the same in each turn, whoever keeps the
    /// transcript, and one upstream more or less moves few conversations.
    pub(super) fn of(route: &Route, messages: &[Message]) -> Self {
        let conversation = beginning(messages);
        let streams = |upstream: &Upstream| upstream.streams.load(std::sync::atomic::Ordering::Relaxed);
        let stop = |upstream: &Arc<Upstream>| Stop {
            upstream: upstream.clone(),
            streams: streams(upstream),
            state: State::Untried,
        };
        let mut stops: Vec<_> = route.upstreams.iter().map(stop).collect();
        stops.sort_by_cached_key(|stop| {
            let drawn = drawn(&conversation, &stop.upstream.name);
            (stop.upstream.rank, std::cmp::Reverse(drawn))
        });
        Self(stops)
    }

    /// Whom to ask next in this round. One that rests is asked only where there is nobody else.
    pub(super) fn next(&mut self, now: Instant) -> Option<&mut Stop> {
        let is_untried = |stop: &Stop| stop.state == State::Untried;
        let awake = self.0.iter().position(|stop| is_untried(stop) && stop.upstream.circuit.lets_through(now));
        let was_tried = self.0.iter().any(|stop| matches!(stop.state, State::Failed(_)));
        let first = || self.0.iter().position(is_untried).filter(|_| !was_tried);
        awake.or_else(first).map(|place| &mut self.0[place])
    }

    /// Begins another round with those that may be asked first; gives how long to wait before it. None is left where
    /// all are out.
    pub(super) fn again(&mut self) -> Option<Duration> {
        let waits =
            self.0.iter().filter_map(|stop| if let State::Failed(wait) = stop.state { Some(wait) } else { None });
        let shortest = waits.min()?;
        for stop in &mut self.0 {
            stop.state = match stop.state {
                State::Failed(wait) if wait > shortest => State::Failed(wait.saturating_sub(shortest)),
                State::Failed(_) | State::Untried => State::Untried,
                State::Out => State::Out,
            };
        }
        Some(shortest)
    }
}

impl Stop {
    /// It may be asked again after so long.
    pub(super) fn failed(&mut self, wait: Duration) {
        self.state = State::Failed(wait);
    }

    /// It is not asked again for this answer.
    pub(super) fn is_out(&mut self) {
        self.state = State::Out;
    }
}
