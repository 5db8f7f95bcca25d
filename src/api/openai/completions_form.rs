//! A completion's answer, whole and as parts, in the shape that OpenAI sends it.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response as HttpResponse};
use serde_json::{Map, Value};

use super::chat;
use super::choices::Form;
use crate::api::object;
use crate::api::stream::data;
use crate::conversation::{self, Ending, Event as Fact, Response, ResponseStatus, TokenLogprob};
use crate::engine::tokenizer::Tokenizer;
use crate::ids::ResponseId;
use crate::protocol::chat::Usage;
use crate::protocol::completions::{CompletionRequest, TextChoice, TextCompletion, TextLogprobs};

/// How a completion is answered; what all parts of a stream say.
pub(super) struct CompletionForm {
    streams: bool,
    /// A last part with the usage.
    shows_usage: bool,
    logprobs: bool,
    count: Count,
    /// The texts that the answers begin with, one for each prompt; none where they are not wanted.
    echoed: Vec<String>,
    /// The first choice's.
    id: Option<ResponseId>,
    /// Known from the first event on.
    created: u64,
    model: String,
    fingerprint: String,
}

/// How many choices each prompt is given.
#[derive(Clone, Copy)]
pub(super) struct Count {
    pub(super) shown: u32,
    /// One at least, and no fewer: the best are shown.
    pub(super) made: u32,
}

impl Count {
    /// Whether some are made that are not shown.
    pub(super) fn chooses(self) -> bool {
        self.made > self.shown
    }

    /// The prompt of this number of those that are made.
    fn prompt_of(self, made: u32) -> u32 {
        made / self.made.max(1)
    }
}

/// What is known of one choice.
pub(super) struct Part {
    index: u32,
    /// What is in front of its own text, until it was sent.
    echoed: Option<String>,
    /// Characters of what was sent.
    offset: usize,
}

impl CompletionForm {
    pub(super) fn new(
        request: &CompletionRequest,
        count: Count,
        prompts: &[Arc<[u32]>],
        tokenizer: &Tokenizer,
    ) -> Self {
        let echoes = request.echo == Some(true);
        let options = request.stream_options.clone().unwrap_or_default();
        Self {
            streams: request.stream == Some(true),
            shows_usage: options.include_usage == Some(true),
            logprobs: request.logprobs.is_some(),
            count,
            echoed: prompts.iter().filter(|_| echoes).map(|tokens| tokenizer.spell(tokens)).collect(),
            id: None,
            created: 0,
            model: String::new(),
            fingerprint: String::new(),
        }
    }

    fn learn(&mut self, response: &Response) {
        if self.model.is_empty() {
            self.created = response.created_ms / 1000;
            self.model.clone_from(&response.config.model);
            self.fingerprint.clone_from(&response.config.fingerprint);
        }
    }

    /// The text in front of those of the choices of this prompt.
    fn in_front(&self, prompt: u32) -> Option<&String> {
        self.echoed.get(prompt as usize)
    }

    /// The answer so far: without usage, but for a place where that will be.
    fn completion(&self, choices: Vec<TextChoice>) -> TextCompletion {
        let usage = self.shows_usage.then_some(None);
        let id = self.id.map(completion_id).unwrap_or_default();
        let (created, model, system_fingerprint) = (self.created, self.model.clone(), self.fingerprint.clone());
        TextCompletion { id, object: "text_completion", created, model, choices, usage, system_fingerprint }
    }

    fn part(&self, choice: TextChoice) -> Event {
        data(&self.completion(vec![choice]))
    }

    fn weighed(&self, logprobs: &[TokenLogprob], offset: &mut usize) -> Option<TextLogprobs> {
        self.logprobs.then(|| weighed(logprobs, offset))
    }

    /// Tokens of all prompts and their choices together, shown or not.
    fn usage(&self, spent: &[(u32, conversation::Usage)]) -> Usage {
        let mut all = chat::usage(&[]);
        let prompts = spent.iter().map(|(index, _)| self.count.prompt_of(*index)).max().map_or(0, |last| last + 1);
        for prompt in 0..prompts {
            let of_prompt = spent.iter().filter(|(index, _)| self.count.prompt_of(*index) == prompt);
            let usage = chat::usage(&of_prompt.map(|(_, usage)| *usage).collect::<Vec<_>>());
            all.prompt_tokens += usage.prompt_tokens;
            all.completion_tokens += usage.completion_tokens;
            all.total_tokens += usage.total_tokens;
            all.prompt_tokens_details.cached_tokens += usage.prompt_tokens_details.cached_tokens;
            all.cost = usage.cost.map(|cost| all.cost.unwrap_or(0.0) + cost).or(all.cost);
        }
        all
    }
}

impl Form for CompletionForm {
    type Choice = Part;

    fn streams(&self) -> bool {
        self.streams
    }

    fn choice(&mut self, index: u32, id: ResponseId) -> Part {
        self.id.get_or_insert(id);
        Part { index, echoed: self.in_front(self.count.prompt_of(index)).cloned(), offset: 0 }
    }

    fn show(&mut self, part: &mut Part, response: &Response, event: &Fact, out: &mut VecDeque<Event>) {
        self.learn(response);
        let index = part.index;
        let (text, logprobs, finish_reason) = match event {
            // The prompt comes with the first sign that it was taken.
            Fact::ResponseInProgress { .. } if part.echoed.is_some() => (String::new(), None, None),
            Fact::OutputDelta { text, logprobs, .. } if !text.is_empty() || !logprobs.is_empty() => {
                (text.clone(), self.weighed(logprobs, &mut part.offset), None)
            }
            Fact::ResponseEnded { .. } => (String::new(), None, Some(finish_reason(response))),
            _ => return,
        };
        let text = part.echoed.take().unwrap_or_default() + &text;
        out.push_back(self.part(TextChoice { text, index, logprobs, finish_reason }));
    }

    fn close(&self, spent: &[(u32, conversation::Usage)]) -> Option<Event> {
        let usage = || Some(Some(self.usage(spent)));
        self.shows_usage.then(|| data(&TextCompletion { usage: usage(), ..self.completion(Vec::new()) }))
    }

    fn sign_of_life(&self) -> Event {
        self.part(TextChoice { text: String::new(), index: 0, logprobs: None, finish_reason: None })
    }

    fn whole(&self, choices: &[Response]) -> HttpResponse {
        let spent: Vec<_> = (0..).zip(choices).map(|(index, choice)| (index, choice.usage)).collect();
        let shown = (0..).zip(choices.chunks(self.count.made.max(1) as usize)).flat_map(|(prompt, made)| {
            best(made, self.count.shown as usize).into_iter().map(move |response| (prompt, response))
        });
        let whole = |(index, (prompt, response)): (u32, (u32, &Response))| {
            let mut text = self.in_front(prompt).cloned().unwrap_or_default();
            let (mut logprobs, mut offset) = (Vec::new(), 0);
            for output in response.output.iter().filter(|output| output.is_kept()) {
                text.push_str(&output.item.text());
                logprobs.extend_from_slice(&output.logprobs);
            }
            let logprobs = self.weighed(&logprobs, &mut offset);
            TextChoice { text, index, logprobs, finish_reason: Some(finish_reason(response)) }
        };
        let choices_shown = (0..).zip(shown).map(whole).collect();
        let usage = Some(Some(self.usage(&spent)));
        let mut answer = TextCompletion { usage, ..self.completion(choices_shown) };
        if let Some(first) = choices.first() {
            answer.id = completion_id(first.id);
            answer.created = first.created_ms / 1000;
            answer.model.clone_from(&first.config.model);
            answer.system_fingerprint.clone_from(&first.config.fingerprint);
        }
        Json(answer).into_response()
    }
}

/// The id of the answer: the response's digits.
fn completion_id(id: ResponseId) -> String {
    id.to_string().replacen("resp_", "cmpl-", 1)
}

/// So many of a prompt's choices: those whose tokens were likeliest on average, the best first.
fn best(made: &[Response], count: usize) -> Vec<&Response> {
    let mut best: Vec<&Response> = made.iter().collect();
    if count < best.len() {
        best.sort_by(|one, other| mean_logprob(other).total_cmp(&mean_logprob(one)));
        best.truncate(count);
    }
    best
}

/// How likely a choice's tokens were on average. Whoever says nothing is no better than anybody.
fn mean_logprob(response: &Response) -> f64 {
    let logprobs = response.output.iter().flat_map(|output| &output.logprobs);
    let (mut sum, mut count) = (0.0, 0_u32);
    for one in logprobs {
        sum += f64::from(one.logprob);
        count += 1;
    }
    if count == 0 { f64::NEG_INFINITY } else { sum / f64::from(count) }
}

/// Why a text ended.
fn finish_reason(response: &Response) -> &'static str {
    match &response.status {
        ResponseStatus::Ended(Ending::Incomplete { reason }) if reason == "max_output_tokens" => "length",
        ResponseStatus::Ended(Ending::Incomplete { reason }) if reason == "content_filter" => "content_filter",
        _ => "stop",
    }
}

/// How likely tokens were; `offset` is where they begin, and moves on to where they end.
fn weighed(logprobs: &[TokenLogprob], offset: &mut usize) -> TextLogprobs {
    let mut lists = TextLogprobs::default();
    for one in object::logprobs(logprobs) {
        let mut top: Map<String, Value> =
            one.top_logprobs.into_iter().map(|top| (top.token, top.logprob.into())).collect();
        top.entry(one.token.clone()).or_insert(one.logprob.into());
        lists.text_offset.push(*offset);
        *offset += one.token.chars().count();
        lists.tokens.push(one.token);
        lists.token_logprobs.push(one.logprob);
        lists.top_logprobs.push(top);
    }
    lists
}
