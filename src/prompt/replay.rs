//! Which reasoning of earlier turns a model sees again: the variables that make its template keep it.
//!
//! Reasoning that explains calls is given to the template in its place, always; what a template drops it drops. A
//! conversation that thinks asks its template to drop nothing, so that the next prompt begins with this one.

use serde_json::{Map, Value};

use super::Capabilities;

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

/// The variables of a request that says whether it wants thinking; what the client set itself stays.
pub fn with_thinking(mut asked: Map<String, Value>, thinks: Option<bool>, effort: Option<&str>) -> Map<String, Value> {
    let set = ["enable_thinking", "thinking"].iter().any(|name| asked.contains_key(*name));
    if let Some(thinks) = thinks.filter(|_| !set) {
        asked.insert("enable_thinking".to_owned(), Value::Bool(thinks));
    }
    // Some templates write the word itself.
    if let Some(effort) = effort.filter(|_| thinks == Some(true)) {
        asked.entry("reasoning_effort").or_insert(Value::from(effort));
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
        let asked = with_thinking(Map::new(), Some(true), Some("low"));
        let said = json!({"enable_thinking": true, "reasoning_effort": "low"});
        assert_eq!(Value::Object(asked.clone()), said);
        let can = Capabilities { thinking_switch: Some("thinking"), ..Capabilities::unknown() };
        assert_eq!(template_kwargs(&asked, &can)["thinking"], true);
        assert!(with_thinking(Map::new(), None, None).is_empty());
        let own = map(&json!({"thinking": false}));
        assert_eq!(with_thinking(own.clone(), Some(true), None), own);
    }
}
