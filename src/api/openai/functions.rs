//! Chat's older way of declaring and calling functions: the request is made one with tools. Its answer is written in
//! the older way by `chat` and `chat_stream`.

use serde_json::{Map, Value, json};

use crate::api::errors::invalid;
use crate::conversation::Reject;

/// Whether the request declares its functions the older way, and so is answered.
pub(super) fn declared(body: &Value) -> bool {
    body.get("functions").is_some_and(|functions| !functions.is_null())
}

/// The same request with tools, and messages that call and answer tools.
pub(crate) fn with_tools(mut body: Value) -> Result<Value, Reject> {
    let Some(fields) = body.as_object_mut() else { return Ok(body) };
    if let Some(functions) = fields.shift_remove("functions").filter(|functions| !functions.is_null()) {
        declare(fields, &functions)?;
    }
    let messages = fields.get_mut("messages").and_then(Value::as_array_mut);
    translate(messages.map(Vec::as_mut_slice).unwrap_or_default())?;
    Ok(body)
}

fn declare(fields: &mut Map<String, Value>, functions: &Value) -> Result<(), Reject> {
    if fields.get("tools").is_some_and(|tools| !tools.is_null()) {
        return Err(invalid("functions", "functions and tools exclude each other; give tools"));
    }
    let list = functions.as_array().ok_or_else(|| invalid("functions", "functions must be a list"))?;
    if let Some(place) = list.iter().position(|function| !function["name"].is_string()) {
        let at = format!("functions[{place}].name");
        return Err(invalid(at.clone(), format!("{at} is missing")));
    }
    let tools: Vec<Value> = list.iter().map(|function| json!({"type": "function", "function": function})).collect();
    let choice = match fields.shift_remove("function_call") {
        None | Some(Value::Null) => Value::Null,
        Some(Value::String(word)) if word == "auto" || word == "none" => word.into(),
        Some(choice) if choice["name"].is_string() => {
            json!({"type": "function", "function": {"name": choice["name"]}})
        }
        Some(_) => return Err(invalid("function_call", "function_call must be auto, none, or name a function")),
    };
    fields.insert("tools".to_owned(), tools.into());
    fields.insert("tool_choice".to_owned(), choice);
    // An answer has room for one call.
    fields.insert("parallel_tool_calls".to_owned(), false.into());
    Ok(())
}

/// Gives each call of the older way an id, and its result the same.
fn translate(messages: &mut [Value]) -> Result<(), Reject> {
    // Calls whose results have not come.
    let mut open: Vec<(String, Value)> = Vec::new();
    for (place, message) in messages.iter_mut().enumerate() {
        let Some(fields) = message.as_object_mut() else { continue };
        if let Some(call) = fields.shift_remove("function_call").filter(|call| !call.is_null()) {
            if fields.get("tool_calls").is_some_and(|calls| !calls.is_null()) {
                let at = format!("messages[{place}].function_call");
                let text = format!("{at}: the message has tool_calls as well, which says the same; leave it out");
                return Err(invalid(at, text));
            }
            let id = format!("function{place}");
            open.push((id.clone(), call["name"].clone()));
            fields.insert("tool_calls".to_owned(), json!([{"id": id, "type": "function", "function": call}]));
        }
        if fields.get("role").is_some_and(|role| role == "function") {
            let name = fields.get("name").cloned().unwrap_or_default();
            let found = open.iter().position(|(_, called)| *called == name).ok_or_else(|| {
                let at = format!("messages[{place}].name");
                invalid(
                    at.clone(),
                    format!("{at}: no function_call before it calls {name}; put the call in front of its result"),
                )
            })?;
            let (id, _) = open.remove(found);
            fields.insert("role".to_owned(), "tool".into());
            fields.insert("tool_call_id".to_owned(), id.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_become_tools_and_their_choice_a_tools() {
        for (choice, expected) in [
            (Value::Null, Value::Null),
            (json!("none"), json!("none")),
            (json!({"name": "f"}), json!({"type": "function", "function": {"name": "f"}})),
        ] {
            let body = json!({"functions": [{"name": "f", "parameters": {}}], "function_call": choice});
            assert!(declared(&body));
            let body = with_tools(body).unwrap();
            assert_eq!(body["tools"], json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]));
            assert_eq!((&body["tool_choice"], &body["parallel_tool_calls"]), (&expected, &json!(false)));
            assert!(body.get("functions").is_none() && body.get("function_call").is_none());
        }
    }

    #[test]
    fn a_call_and_its_result_find_each_other_by_the_functions_name() {
        let call = |name: &str| {
            let call = json!({"name": name, "arguments": "{}"});
            json!({"role": "assistant", "content": null, "function_call": call})
        };
        let result = |name: &str| json!({"role": "function", "name": name, "content": "1"});
        let body = json!({"messages": [call("a"), result("a"), call("b"), call("a"), result("a"), result("b")]});
        let body = with_tools(body).unwrap();
        let ids = |place: usize| (&body["messages"][place]["tool_calls"][0]["id"], &body["messages"][place]["role"]);
        for (called, answered) in [(0, 1), (3, 4), (2, 5)] {
            let message = &body["messages"][answered];
            assert_eq!((&message["tool_call_id"], &message["role"]), (ids(called).0, &json!("tool")));
        }
        let lonely = with_tools(json!({"messages": [result("a")]})).unwrap_err();
        assert_eq!(lonely.param.as_deref(), Some("messages[0].name"));
    }

    #[test]
    fn what_cannot_be_understood_is_refused_by_its_name() {
        for (body, param) in [
            (json!({"functions": [{"name": "f"}], "tools": []}), "functions"),
            (json!({"functions": {}}), "functions"),
            (json!({"functions": [{"parameters": {}}]}), "functions[0].name"),
            (json!({"functions": [{"name": "f"}], "function_call": {"id": 1}}), "function_call"),
            (
                json!({"messages": [{"tool_calls": [{"id": "a"}], "function_call": {"name": "f"}}]}),
                "messages[0].function_call",
            ),
        ] {
            assert_eq!(with_tools(body).unwrap_err().param.as_deref(), Some(param));
        }
        assert_eq!(with_tools(json!({"functions": null, "model": "m"})).unwrap(), json!({"model": "m"}));
    }
}
