//! Prompts without a generation: what a request would be given, and why a response's prompt left what was held.
//!
//! Renders by the same way as a generation, in the same bounded room.

use std::sync::Arc;
use std::time::Duration;

use super::chat::BYTES_PER_TOKEN;
use super::directory::DirectoryHandle;
use super::offload::offload;
use super::prompt::{Asked, PromptSettings, Unrendered, explain, preview};
use super::standing::salt;
use crate::config::Config;
use crate::conversation::{Create, Reject, ResponseConfig, State};
use crate::engine::{Engine, Medium, ModelInfo};
use crate::error::Code;
use crate::ids::ResponseId;
use crate::prompt::{Built, Message, PrefixReport};

/// The messages and the prompt that a request would be given in a conversation of its own.
pub fn preview_prompt(
    create: Create,
    now_ms: u64,
    model: &ModelInfo,
    config: &Config,
) -> Result<(Vec<Message>, Built), Reject> {
    let alone = State { template_ms: now_ms, ..State::default() };
    preview(alone, Asked { create, begins: None }, now_ms, model, config.into()).map_err(refusal)
}

impl DirectoryHandle {
    /// The prompt that a request would be given behind the last turn of `behind`, or in a conversation of its own.
    pub async fn preview(
        &self,
        behind: Option<State>,
        create: Create,
        engine: &Arc<dyn Engine>,
    ) -> Result<Built, Reject> {
        let (engine, settings) = (engine.clone(), self.settings());
        let now_ms = self.parts.clock.unix_ms();
        let state = behind.unwrap_or_else(|| State { template_ms: now_ms, ..State::default() });
        let asked = Asked { create, begins: None };
        self.compute(move || preview(state, asked, now_ms, engine.model(), settings))
            .await?
            .map(|(_, built)| built)
            .map_err(refusal)
    }

    /// How many of a prompt's first tokens, which are these, spell what a conversation that begins with this request's
    /// input begins with.
    pub async fn begins_with(
        &self,
        create: Create,
        prompt: Arc<[u32]>,
        engine: &Arc<dyn Engine>,
    ) -> Result<usize, Reject> {
        let (engine, settings) = (engine.clone(), self.settings());
        let now_ms = self.parts.clock.unix_ms();
        let state = State { template_ms: now_ms, ..State::default() };
        let asked = Asked { create, begins: Some(Arc::clone(&prompt)) };
        let built = self.compute(move || preview(state, asked, now_ms, engine.model(), settings)).await?;
        let common = |built: &Built| built.tokens.iter().zip(&*prompt).take_while(|(one, other)| one == other).count();
        built.map(|(_, built)| common(&built)).map_err(refusal)
    }

    /// Has the KV of a tenant's prompt's first tokens kept for so long once it is computed: see [`Engine::keep_kv`].
    pub fn keep_kv(
        &self,
        engine: &Arc<dyn Engine>,
        (tenant, config): (Option<&str>, &ResponseConfig),
        tokens: Vec<u32>,
        ttl: Duration,
    ) {
        engine.keep_kv(tokens.into(), salt(tenant, config), ttl);
    }

    /// How many tokens that prompt has; where its engine takes messages, about how many.
    pub async fn count(
        &self,
        behind: Option<State>,
        create: Create,
        engine: &Arc<dyn Engine>,
    ) -> Result<usize, Reject> {
        let count = self.preview(behind, create, engine).await?.tokens.len();
        Ok(match engine.model().medium {
            Medium::Tokens => count,
            Medium::Messages => count / BYTES_PER_TOKEN,
        })
    }

    /// Where the prompt of a response left the tokens that were held for it, and of which response these were.
    pub async fn explain(
        &self,
        state: Arc<State>,
        id: ResponseId,
        engine: &Arc<dyn Engine>,
    ) -> Result<(Option<ResponseId>, PrefixReport), Reject> {
        let (engine, settings) = (engine.clone(), self.settings());
        self.compute(move || explain(&state, id, engine.model(), settings)).await?.map_err(refusal)
    }

    /// Does work that takes a core, away from the async threads and not more at once than prompts are rendered.
    pub async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Reject> {
        let permit = self.parts.running.render_permit().await;
        let done = offload(move || {
            let _permit = permit;
            work()
        });
        done.await.map_err(|_| Reject::new(Code::Internal, "the work failed; the log says where"))
    }

    fn settings(&self) -> PromptSettings {
        self.parts.config.as_ref().into()
    }
}

fn refusal(unrendered: Unrendered) -> Reject {
    match unrendered {
        Unrendered::Template(message) => Reject::new(Code::InvalidInput, message).param("messages"),
        Unrendered::TooLong(message) => Reject::new(Code::ContextLengthExceeded, message).param("input"),
        Unrendered::Constraint(message) => Reject::new(Code::InvalidInput, message),
    }
}
