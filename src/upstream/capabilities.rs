//! What a model can do, as its operator set it, checked before anything is asked of its upstream. Pure.

use crate::config::Capabilities;
use crate::engine::{FinishReason, GenerationRequest, Refusal};

/// Why this model will not answer the request, if it will not.
pub(super) fn lacks(can: &Capabilities, model: &str, request: &GenerationRequest) -> Option<FinishReason> {
    let chat = &request.chat;
    let wants_thought =
        chat.effort.as_deref().is_some_and(|effort| effort != "none") || chat.thinking_tokens.is_some_and(|it| it > 0);
    let bound = (request.max_tokens < u32::MAX).then_some(request.max_tokens);
    let text = if can.tools == Some(false) && !chat.tools.is_empty() {
        format!("the model {model} calls no tools; leave tools out, or ask another model")
    } else if can.reasoning == Some(false) && wants_thought && chat.thinking_tokens != Some(0) {
        format!("the model {model} does not think before it answers; leave reasoning out, or ask another model")
    } else if let (Some(most), Some(bound)) = (can.output_length, bound)
        && bound > most
    {
        format!("an answer of the model {model} may have at most {most} tokens, not {bound}; ask for fewer")
    } else {
        return None;
    };
    Some(FinishReason::Refused(Refusal::Input, text))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::*;
    use crate::engine::Chat;
    use crate::prompt::ToolDefinition;

    #[test]
    fn what_a_model_cannot_do_is_not_asked_of_it() {
        let tool = ToolDefinition { name: "look".to_owned(), description: None, parameters: Value::Null };
        let asks = |chat: Chat, max_tokens: u32| GenerationRequest {
            chat: Arc::new(chat),
            ..GenerationRequest::greedy(Arc::default(), max_tokens)
        };
        let calls = asks(Chat { tools: vec![tool], ..Chat::default() }, 9);
        let thinks = |effort: &str| asks(Chat { effort: Some(effort.to_owned()), ..Chat::default() }, 9);
        let budget = |tokens| asks(Chat { thinking_tokens: Some(tokens), ..Chat::default() }, 9);
        let long = asks(Chat::default(), 100);
        let all = [&calls, &thinks("high"), &budget(7), &long];
        assert!(all.iter().all(|request| lacks(&Capabilities::default(), "m", request).is_none()), "nothing is known");
        let can = Capabilities { tools: Some(false), reasoning: Some(false), output_length: Some(99) };
        for (request, word) in all.iter().zip(["calls no tools", "does not think", "does not think", "at most 99"]) {
            let refusal = lacks(&can, "m", request);
            let says = |text: &str| text.contains(word) && text.contains("the model m ");
            assert!(matches!(&refusal, Some(FinishReason::Refused(Refusal::Input, text)) if says(text)), "{refusal:?}");
        }
        for request in [asks(Chat::default(), 99), asks(Chat::default(), u32::MAX), thinks("none"), budget(0)] {
            assert_eq!(lacks(&can, "m", &request), None);
        }
    }
}
