//! Which reasoning of earlier turns a model sees again: the variables that make its template keep it.
//!
//! Reasoning that explains calls is given to the template in its place, always; what a template drops it drops. A
//! conversation that thinks asks its template to drop nothing, so that the next prompt begins with this one.

use serde_json::{Map, Value};

use super::{Capabilities, Effort};

/// Keeps earlier reasoning in most templates that can; set whether the template is known to read it or not.
const KEEP: (&str, bool) = ("truncate_history_thinking", false);

/// The variables for a template, from those of the request. What the request sets stays; what keeps earlier reasoning
/// is added unless the request switched thinking off.
pub fn template_kwargs(asked: &Map<String, Value>, can: &Capabilities) -> Map<String, Value> {
    let mut kwargs = asked.clone();
    let off = |name: &str| asked.get(name).is_some_and(|value| value == false);
    if off("enable_thinking") || off("thinking") {
        return kwargs;
    }
    for (name, value) in std::iter::once(&KEEP).chain(&can.keeps_reasoning_with) {
        kwargs.entry(*name).or_insert(Value::Bool(*value));
    }
    // Some templates have a name of their own for the switch.
    if let (Some(switch), Some(on)) = (can.thinking_switch, asked.get("enable_thinking")) {
        kwargs.entry(switch).or_insert(on.clone());
    }
    kwargs
}

/// The variables of a request that says how hard to think, by a word and what it stands for; what the client set itself
/// stays.
pub fn with_effort(mut asked: Map<String, Value>, word: &str, effort: &Effort) -> Map<String, Value> {
    let thinks = effort.budget_tokens != Some(0);
    for (name, value) in &effort.template_kwargs {
        asked.entry(name).or_insert_with(|| value.clone());
    }
    if !asked.contains_key("enable_thinking") && !asked.contains_key("thinking") {
        asked.insert("enable_thinking".to_owned(), Value::Bool(thinks));
    }
    // Some templates write the word itself.
    if thinks {
        asked.entry("reasoning_effort").or_insert(Value::from(word));
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn earlier_reasoning_is_kept_unless_the_client_switched_thinking_off() {
        let can = Capabilities { keeps_reasoning_with: vec![("clear_thinking", false)], ..Capabilities::unknown() };
        let kept = |asked: Value| Value::Object(template_kwargs(&map(&asked), &can));
        let all = json!({"truncate_history_thinking": false, "clear_thinking": false});
        assert_eq!(kept(json!({})), all);
        assert_eq!(kept(json!({"enable_thinking": false})), json!({"enable_thinking": false}));
        let asked = json!({"clear_thinking": true, "x": [1]});
        let mut all = map(&all);
        all.extend(map(&asked));
        assert_eq!(kept(asked), Value::Object(all));
    }

    #[test]
    fn a_request_that_thinks_says_so_to_the_template_under_its_own_name_too() {
        let low = Effort { budget_tokens: Some(1024), ..Effort::default() };
        let asked = with_effort(Map::new(), "low", &low);
        let said = json!({"enable_thinking": true, "reasoning_effort": "low"});
        assert_eq!(Value::Object(asked.clone()), said);
        let can = Capabilities { thinking_switch: Some("thinking"), ..Capabilities::unknown() };
        assert_eq!(template_kwargs(&asked, &can)["thinking"], true);
        // What the model's settings say of the word goes before what is usual, and behind what the client says.
        let template_kwargs = map(&json!({"reasoning_effort": "high", "thinking": true, "x": 1}));
        let most = Effort { budget_tokens: None, template_kwargs };
        let said = json!({"x": 2, "reasoning_effort": "high", "thinking": true});
        assert_eq!(Value::Object(with_effort(map(&json!({"x": 2})), "max", &most)), said);
        let none = Effort { budget_tokens: Some(0), ..Effort::default() };
        let off = json!({"enable_thinking": false});
        assert_eq!(Value::Object(with_effort(Map::new(), "none", &none)), off);
        let own = map(&json!({"thinking": false, "reasoning_effort": "x"}));
        assert_eq!(with_effort(own.clone(), "low", &low), own);
    }
}
