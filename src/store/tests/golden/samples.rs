//! Events of every kind, as they are stored.

use super::*;
use crate::engine::settings::{
    CallRule, Callable, Constraint, Dry, InputRule, Mirostat, Penalties, Price, Shaping, Step, TextRule, Xtc,
};

/// Tools of other kinds than functions, brought by an item and called; a summary; and answers that are none.
pub(super) fn kinds() -> Vec<Event> {
    let tool = ToolDefinition { name: "a__exec".into(), description: None, parameters: json!({}) };
    let shape = ToolShape { name: "exec".into(), namespace: Some("a".into()), kind: CallKind::Custom };
    let shapes = BTreeMap::from([("a__exec".to_owned(), shape)]);
    let (call_id, namespace) = (CallId("call0123456789abcdefghijklmn".into()), Some("a".into()));
    let (name, arguments, output) = ("exec".into(), String::new(), "done".into());
    let call_kind = CallKind::Custom;
    let hold = Hold::Input { rule: InputRule::Regex { pattern: "[a-c]+".into() } };
    let holds = BTreeMap::from([("a__exec".to_owned(), hold), ("look".to_owned(), Hold::Schema)]);
    let bodies = [
        ItemBody::AdditionalTools {
            toolbox: Toolbox { tools: vec![tool], shapes: shapes.clone(), holds },
            found: true,
        },
        ItemBody::FunctionCall { call_id: call_id.clone(), native_id: None, name, arguments, call_kind, namespace },
        ItemBody::FunctionCallOutput { call_id, output, synthetic: false, is_error: false, call_kind },
        ItemBody::Compaction { text: "so far".into() },
        ItemBody::Reasoning {
            text: "hm".into(),
            made: Some(Made { fingerprint: "f".into(), tokens: vec![7, 8], native: None }),
        },
    ];
    let items = bodies.map(|body| Item { id: item_id(8), status: ItemStatus::Completed, body }).to_vec();
    let seal = Some(SealKey { of: response(1), key: [0x5a; 32] });
    let config = ResponseConfig { tool_shapes: shapes, purpose: Purpose::Summary, seal, ..config() };
    let config = ResponseConfig { tools_allowed: ToolsAllowed::Named, ..config };
    let new = NewResponse { id: response(1), previous: None, input: Vec::new(), config, enqueued: false };
    vec![Event::ItemsAdded { items }, Event::ResponseCreated(Box::new(new))]
}

/// One of several answers to an urgent request.
pub(super) fn with_standing() -> Event {
    let (id, input) = (response(2), Vec::new());
    let choice = Some(ChoiceOf { first: response(1), index: 1 });
    let config = ResponseConfig { priority: Some(-5), choice, ..config() };
    Event::ResponseCreated(Box::new(NewResponse { id, previous: None, input, config, enqueued: false }))
}

/// A response with everything that few ask for.
pub(super) fn with_extras() -> Event {
    let prompt = Some([1, 2, 3].into());
    let extras = Extras { prompt, cache_salt: Some(u64::MAX), speculative_prefill: Some(false), ..Extras::default() };
    let (id, input, config) = (response(1), Vec::new(), ResponseConfig { extras, ..config() });
    Event::ResponseCreated(Box::new(NewResponse { id, previous: None, input, config, enqueued: false }))
}

/// A response that is among the kept chats of its principal, and may make so many calls.
pub(super) fn kept() -> Event {
    let extras = Extras { chat_of: Some("ann".into()), max_tool_calls: Some(3), ..Extras::default() };
    let (id, input, config) = (response(1), Vec::new(), ResponseConfig { extras, ..config() });
    Event::ResponseCreated(Box::new(NewResponse { id, previous: None, input, config, enqueued: false }))
}

/// A response that can call a tool which was found.
pub(super) fn with_found_tools() -> Event {
    let found_tools = vec![ToolDefinition { name: "found".into(), description: None, parameters: json!({}) }];
    let extras = Extras { found_tools, ..Extras::default() };
    let (id, input, config) = (response(1), Vec::new(), ResponseConfig { extras, ..config() });
    Event::ResponseCreated(Box::new(NewResponse { id, previous: None, input, config, enqueued: false }))
}

/// A response whose prompt leaves out what is too old, and the prompt.
pub(super) fn shortened() -> Vec<Event> {
    let extras = Extras { truncates: true, ..Extras::default() };
    let (id, input, config) = (response(1), Vec::new(), ResponseConfig { extras, ..config() });
    let prompt = RecordedPrompt { kept: 5, tokens: [11, 12].into(), fingerprint: None, left_out: 3 };
    vec![
        Event::ResponseCreated(Box::new(NewResponse { id, previous: None, input, config, enqueued: false })),
        Event::ResponseInProgress { response_id: id, prompt_tokens: 7, cached_tokens: 5, prompt: Some(prompt) },
    ]
}

/// A response that says how its answer is read.
pub(super) fn with_formats() -> Event {
    let formats = Some(Formats { tool: "hermes".into(), reasoning: "qwen3".into(), bare_calls: true });
    let (id, input) = (response(1), Vec::new());
    let config = ResponseConfig { formats, ..config() };
    Event::ResponseCreated(Box::new(NewResponse { id, previous: None, input, config, enqueued: false }))
}

/// A conversation whose answers may have so many tokens together.
pub(super) fn bounded() -> Vec<Event> {
    let policy = Policy { max_conversation_tokens: Some(1 << 40), ..config().policy };
    let (id, input, config) = (response(1), Vec::new(), ResponseConfig { policy, ..config() });
    let (response_id, max_conversation_tokens, left_tokens) = (response(1), 1 << 40, 4096);
    let held = |input| {
        let tools = vec![Callable { name: "patch".into(), by_schema: true, input: Some(input) }];
        let calls = Some(CallRule { tools, several: false });
        let constraint = Some(Constraint { text: TextRule::Nothing, calls, at: Some("tools".into()) });
        let config = ResponseConfig { constraint, ..self::config() };
        let (id, input) = (response(2), Vec::new());
        Event::ResponseCreated(Box::new(NewResponse { id, previous: None, input, config, enqueued: false }))
    };
    vec![
        Event::ConversationCreated {
            id: ConversationId::from_bytes([1; 16]),
            principal: "local".into(),
            tenant: None,
            metadata: Map::new(),
            forked_from: None,
            defaults: Policies { max_conversation_tokens: Some(1 << 40), ..Policies::default() },
            template_ms: None,
        },
        Event::ResponseCreated(Box::new(NewResponse { id, previous: None, input, config, enqueued: false })),
        Event::ConversationBudgetLow { response_id, max_conversation_tokens, left_tokens },
        held(InputRule::Regex { pattern: "a+".into() }),
        held(InputRule::Lark { grammar: "start: \"a\"\n".into() }),
    ]
}

/// A response that goes on with the last message of its input.
pub(super) fn going_on() -> Event {
    let (id, input) = (response(1), vec![Item::message(item_id(7), Role::Assistant, "So")]);
    let config = ResponseConfig { prompt_end: PromptEnd::Message, ..config() };
    Event::ResponseCreated(Box::new(NewResponse { id, previous: None, input, config, enqueued: false }))
}

/// Calls to which the model itself gave an id: in front of the arguments, and behind them.
pub(super) fn native_ids() -> Vec<Event> {
    let (response_id, item_id) = (response(1), item_id(6));
    let body = ItemBody::FunctionCall {
        call_id: CallId("call0123456789abcdefghijklmn".into()),
        native_id: Some("functions.weather:0".into()),
        name: "weather".into(),
        arguments: String::new(),
        call_kind: CallKind::Function,
        namespace: None,
    };
    let item = Item { id: item_id, status: ItemStatus::InProgress, body };
    let (status, native_id) = (ItemStatus::Completed, Some("aB3dE6gH9".into()));
    vec![
        Event::OutputItemAdded { response_id, item, first_token: 3 },
        Event::OutputItemDone { response_id, item_id, status, native_id, made: None },
    ]
}

/// A response whose tokens cost something.
pub(super) fn priced() -> Event {
    let price = Some(Price { input: 3.0, cached_input: Some(0.3), output: 15.0 });
    let (id, input, config) = (response(1), Vec::new(), ResponseConfig { price, ..config() });
    Event::ResponseCreated(Box::new(NewResponse { id, previous: None, input, config, enqueued: false }))
}

/// Reasoning that its maker wants to read again as it signed it.
pub(super) fn signed() -> Event {
    let native = Some(serde_json::json!({"type": "thinking", "signature": "c2lnbg=="}));
    let made = Some(Made { fingerprint: "upstream-claude-m".into(), tokens: Vec::new(), native });
    let (response_id, item_id, status) = (response(1), item_id(6), ItemStatus::Completed);
    Event::OutputItemDone { response_id, item_id, status, native_id: None, made }
}

/// Responses whose tokens are chosen in every way there is, and held to every form; and how likely tokens were.
pub(super) fn shaped() -> Vec<Event> {
    let sequence_breakers = vec!["\n".to_owned()];
    let dry = Dry { multiplier: 0.8, base: 1.75, allowed_length: 2, last_n: Some(512), sequence_breakers };
    let shaping = Shaping {
        order: Some(vec![Step::TopK, Step::TopNSigma, Step::Temperature]),
        logit_bias: vec![(7, -1.5), (50_000, 100.0)],
        penalties: Some(Penalties { repetition: 1.5, frequency: 0.25, presence: -0.5, last_n: Some(64) }),
        dry: Some(dry),
        top_n_sigma: Some(1.5),
        typical_p: Some(0.5),
        xtc: Some(Xtc { probability: 0.5, threshold: 0.25 }),
        mirostat: Some(Mirostat { version: 2, tau: 5.0, eta: 0.125 }),
    };
    let schema = json!({"type": "object", "properties": {"b": {"type": "null"}, "a": {"const": 1.5}}});
    let tools = vec![Callable { name: "weather".into(), by_schema: true, input: None }];
    let forms = [
        (TextRule::Any, Some(CallRule { tools: tools.clone(), several: false })),
        (TextRule::Nothing, Some(CallRule { tools, several: true })),
        (TextRule::JsonSchema { schema }, None),
        (TextRule::Regex { pattern: "[0-9]+\n".into() }, None),
        (TextRule::Lark { grammar: "start: \"a\"\n".into() }, None),
        (TextRule::Choice { texts: vec!["yes".into(), "no".into()] }, None),
    ];
    let created = |(text, calls)| {
        let sampling = Sampling { shaping: shaping.clone(), ..config().sampling };
        let config = ResponseConfig {
            sampling,
            logprobs: Some(3),
            constraint: Some(Constraint { text, calls, at: None }),
            ..config()
        };
        let (id, input) = (response(2), Vec::new());
        Event::ResponseCreated(Box::new(NewResponse { id, previous: None, input, config, enqueued: false }))
    };
    let top = vec![(vec![0x48], -0.25), (vec![0xf0, 0x9f], -1.5)];
    let logprobs = vec![
        TokenLogprob { bytes: vec![0x48], logprob: -0.25, top },
        TokenLogprob { bytes: vec![0xf0], logprob: f32::MIN, top: Vec::new() },
    ];
    let mut events: Vec<Event> = forms.into_iter().map(created).collect();
    let (response_id, item_id, tokens) = (response(2), item_id(6), vec![1, 2]);
    events.push(Event::OutputDelta { response_id, item_id, text: "H".into(), tokens, logprobs });
    events
}

/// Prompts, behind a response that began with one and in a fork.
pub(super) fn prompts() -> Vec<Event> {
    let prompt = |kept, fingerprint| Some(RecordedPrompt { kept, tokens: [11, 12].into(), fingerprint, left_out: 0 });
    let turn = CopiedTurn {
        response_id: response(8),
        created_ms: 1_764_000_000_000,
        ended_ms: None,
        config: None,
        input: Vec::new(),
        output: Vec::new(),
        tail_tokens: Vec::new(),
        prompt: prompt(0, None),
        calls: Vec::new(),
    };
    let began =
        |prompt| Event::ResponseInProgress { response_id: response(1), prompt_tokens: 40, cached_tokens: 32, prompt };
    vec![
        began(prompt(38, None)),
        began(prompt(0, Some("another model".into()))),
        Event::TurnsCopied { turns: vec![turn] },
    ]
}

/// A fork's beginning.
pub(super) fn copies() -> Vec<Event> {
    let call = |status, closed: Option<&str>, output| CopiedCall {
        call_id: CallId("call0123456789abcdefghijklmn".into()),
        name: "weather".into(),
        attempt: 2,
        status,
        closed: closed.map(str::to_owned),
        output,
    };
    let calls = vec![
        call(CallStatus::Requested, None, None),
        call(CallStatus::Claimed { lease_until_ms: 1_764_000_000_000 }, None, None),
        call(CallStatus::Completed, None, None),
        call(CallStatus::Answered, None, Some(failed_output())),
        call(CallStatus::Cancelled, Some("superseded"), Some(items().remove(3))),
        call(CallStatus::Unknown, Some("lease_ended"), Some(items().remove(3))),
    ];
    let said = CopiedOutput { item: items().remove(1), tokens: vec![5, 6] };
    let behind_a_cut_call = CopiedOutput { item: items().remove(1), tokens: Vec::new() };
    let first = CopiedTurn {
        response_id: response(8),
        created_ms: 1_764_000_000_000,
        ended_ms: Some(1_764_000_000_001),
        config: Some(Box::new(config())),
        input: vec![Item::message(item_id(5), Role::User, "Hello")],
        output: vec![said, behind_a_cut_call],
        tail_tokens: vec![7],
        prompt: None,
        calls: Vec::new(),
    };
    let last = CopiedTurn {
        response_id: response(9),
        created_ms: 1_764_000_000_002,
        ended_ms: None,
        config: None,
        input: Vec::new(),
        output: Vec::new(),
        tail_tokens: Vec::new(),
        prompt: None,
        calls,
    };
    vec![
        Event::ConversationCreated {
            id: ConversationId::from_bytes([3; 16]),
            principal: "anonymous".into(),
            tenant: None,
            metadata: Map::new(),
            forked_from: Some(response(9)),
            defaults: Policies::default(),
            template_ms: Some(1_764_000_000_000),
        },
        Event::TurnsCopied { turns: vec![first, last] },
    ]
}

pub(super) fn beginnings() -> Vec<Event> {
    let sparse = ResponseConfig {
        instructions: None,
        tools: Vec::new(),
        max_output_tokens: None,
        stop: Vec::new(),
        template_kwargs: Map::new(),
        background: false,
        metadata: Map::new(),
        echo: Map::new(),
        policy: Policy::default(),
        tool_policies: BTreeMap::new(),
        max_parallel_tool_calls: None,
        thinking: None,
        strip_preamble: false,
        formats: None,
        logprobs: None,
        constraint: None,
        ..config()
    };
    vec![
        Event::ConversationCreated {
            id: ConversationId::from_bytes([3; 16]),
            principal: "anonymous".into(),
            tenant: None,
            metadata: object(&json!({"topic": "demo"})),
            forked_from: Some(response(9)),
            defaults: Policies { grace_ms: Some(100), ..Policies::default() },
            template_ms: None,
        },
        Event::ConversationCreated {
            id: ConversationId::from_bytes([3; 16]),
            principal: String::new(),
            tenant: None,
            metadata: Map::new(),
            forked_from: None,
            defaults: Policies::default(),
            template_ms: None,
        },
        Event::ItemsAdded { items: items() },
        Event::ResponseCreated(Box::new(NewResponse {
            id: response(1),
            previous: Some(response(9)),
            input: vec![Item::message(item_id(5), Role::User, "Hello")],
            config: config(),
            enqueued: true,
        })),
        Event::ResponseCreated(Box::new(NewResponse {
            id: response(2),
            previous: None,
            input: Vec::new(),
            config: sparse,
            enqueued: false,
        })),
        Event::ResponseInProgress { response_id: response(1), prompt_tokens: 40, cached_tokens: 32, prompt: None },
        Event::ResponseResumed { response_id: response(1), attempt: 2, exact: true },
    ]
}

pub(super) fn outputs() -> Vec<Event> {
    let (response_id, item_id) = (response(1), item_id(6));
    let call_id = CallId("call0123456789abcdefghijklmn".into());
    vec![
        Event::OutputItemAdded {
            response_id,
            item: Item {
                id: item_id,
                status: ItemStatus::InProgress,
                body: ItemBody::Message { role: Role::Assistant, content: Vec::new() },
            },
            first_token: 3,
        },
        Event::ContentPartAdded { response_id, item_id },
        Event::OutputDelta {
            response_id,
            item_id,
            text: "Hel\u{0}lo \u{1F600}".into(),
            tokens: vec![0, 17, u32::MAX],
            logprobs: Vec::new(),
        },
        Event::OutputDone { response_id, item_id },
        Event::ContentPartDone { response_id, item_id },
        Event::OutputItemDone { response_id, item_id, status: ItemStatus::Incomplete, native_id: None, made: None },
        Event::ToolCallRequested { response_id, call_id: call_id.clone(), attempt: 1 },
        Event::OutputItemDiscarded { response_id, item_id },
        Event::ToolCallClaimed { response_id, call_id: call_id.clone(), attempt: 1, lease_until_ms: 1_764_000_000_000 },
        Event::ToolResultAccepted { response_id, call_id: call_id.clone(), attempt: 1, output: failed_output() },
        Event::ToolResultDiscarded {
            response_id,
            call_id: call_id.clone(),
            attempt: 1,
            reason: "timeout".into(),
            by_seq: 9,
        },
        Event::ToolCallClosed { response_id, call_id, attempt: 1, reason: "steered".into(), output: items().remove(3) },
    ]
}

/// Ended by a stop string.
pub(super) fn stopped() -> Event {
    let (ending, stop_string) = (Ending::Completed, Some("\n\n".into()));
    Event::ResponseEnded { response_id: response(1), ending, tail_tokens: vec![10, 10], stop_string, usage: None }
}

/// Counted by an engine that alone can.
pub(super) fn counted() -> Event {
    let counts = (20, 16, 7, 3);
    let (input_tokens, cached_tokens, output_tokens, reasoning_tokens) = counts;
    let usage = Some(Usage { input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost_nanos: None });
    let (ending, tail_tokens, stop_string) = (Ending::Completed, Vec::new(), None);
    Event::ResponseEnded { response_id: response(1), ending, tail_tokens, stop_string, usage }
}

pub(super) fn endings() -> Vec<Event> {
    let response_id = response(1);
    let intervention_id = InterventionId::from_bytes([4; 16]);
    let ended =
        |ending| Event::ResponseEnded { response_id, ending, tail_tokens: vec![2], stop_string: None, usage: None };
    vec![
        Event::CancelRequested { response_id },
        ended(Ending::Completed),
        ended(Ending::Incomplete { reason: "steered".into() }),
        ended(Ending::Cancelled),
        ended(Ending::Failed {
            error: ResponseError { code: Code::EngineFailed, message: "the engine failed".into() },
        }),
        Event::InterventionAccepted {
            intervention_id,
            response_id,
            items: vec![Item::message(item_id(7), Role::User, "Shorter, please.")],
            when: When::Now,
            tools: ToolsOnSteer::Cancel,
            enqueued: false,
            thinking: None,
        },
        Event::InterventionAccepted {
            intervention_id,
            response_id,
            items: Vec::new(),
            when: When::After,
            tools: ToolsOnSteer::Await,
            enqueued: true,
            thinking: Some(Thinking { budget_tokens: None, effort: Some("xhigh".into()) }),
        },
        Event::InterventionPending { intervention_id, response_id },
        Event::InterventionFailed {
            intervention_id,
            response_id,
            error: ResponseError { code: Code::ResponseCancelled, message: "cancelled first".into() },
        },
        Event::InterventionSuperseded { intervention_id, response_id, by: InterventionId::from_bytes([5; 16]) },
        Event::InterventionWithdrawn { intervention_id, response_id },
        Event::InterventionCommitted {
            intervention_id,
            response_id,
            successor_id: response(2),
            cut: Some(Cut { item_id: Some(item_id(6)), token_index: 3 }),
        },
        Event::InterventionCommitted { intervention_id, response_id, successor_id: response(2), cut: None },
        Event::ResponseSuspended { response_id },
        Event::ResponseDequeued { response_id },
        Event::ResponseQueued { response_id },
        Event::ResponseUnattended { response_id, until_ms: Some(1_764_000_000_000) },
        Event::ResponseUnattended { response_id, until_ms: None },
        Event::ResponseAttended { response_id },
        Event::ResponsePaused { response_id },
        Event::ResponseDeleted { response_id },
        Event::ItemDeleted { item_id: item_id(7) },
        Event::ConversationUpdated { metadata: object(&json!({"topic": "done"})) },
        Event::ConversationRewound { seq: 17, epoch: 1 },
        Event::ConversationSuspended {},
        Event::ConversationResumed {},
        Event::ConversationDeleted {},
    ]
}

pub(super) fn of_a_tenant() -> Event {
    Event::ConversationCreated {
        id: ConversationId::from_bytes([4; 16]),
        principal: "ann".into(),
        tenant: Some("red".into()),
        metadata: Map::new(),
        forked_from: None,
        defaults: Policies::default(),
        template_ms: None,
    }
}
