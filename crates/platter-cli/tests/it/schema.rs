//! The documented schema of what the command writes, and whether a document keeps it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

const SCHEMA: &str = include_str!("../../../../docs/json/platter.schema.json");

/// Holds a document against the definition of this name.
pub(crate) fn assert_valid(definition: &str, document: &Value) {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let definition = &schema["$defs"][definition];
    assert!(definition.is_object(), "there is no such definition");
    let mut faults = Vec::new();
    validate(&schema, definition, document, "", &mut faults);
    assert!(faults.is_empty(), "{faults:#?}\n{document:#}");
}

/// The part of JSON Schema that the schema uses; anything else in it is a failure.
fn validate(root: &Value, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    let Value::Object(rules) = schema else {
        panic!("{at}: {schema} is no schema");
    };
    for (rule, wanted) in rules {
        let fault = match &**rule {
            "description" | "properties" | "required" | "additionalProperties" => None,
            "$ref" => {
                let name = wanted
                    .as_str()
                    .and_then(|text| text.strip_prefix("#/$defs/"));
                validate(root, &root["$defs"][name.unwrap()], value, at, faults);
                assert_eq!(
                    rules.keys().filter(|rule| *rule != "description").count(),
                    1
                );
                return;
            }
            "anyOf" => {
                let mut alternatives = wanted.as_array().unwrap().iter();
                let fits = |schema| {
                    let mut faults = Vec::new();
                    validate(root, schema, value, at, &mut faults);
                    faults.is_empty()
                };
                (!alternatives.any(fits)).then(|| format!("{value} is none of the alternatives"))
            }
            "type" => {
                let is = |kind: &Value| is_of_type(value, kind.as_str().unwrap());
                let kinds = wanted
                    .as_array()
                    .map_or(std::slice::from_ref(wanted), Vec::as_slice);
                let fits = kinds.iter().any(is);
                (!fits).then(|| format!("{value} is no {wanted}"))
            }
            "enum" => {
                let fits = wanted.as_array().unwrap().contains(value);
                (!fits).then(|| format!("{value} is not in {wanted}"))
            }
            "minimum" => {
                let is_less = value
                    .as_i64()
                    .is_some_and(|number| number < wanted.as_i64().unwrap());
                is_less.then(|| format!("{value} is less than {wanted}"))
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(root, wanted, item, &format!("{at}[{index}]"), faults);
                }
                None
            }
            other => panic!("{at}: the rule {other} is not known here"),
        };
        faults.extend(fault.map(|text| format!("{at}: {text}")));
    }
    if let Value::Object(object) = value {
        validate_object(root, rules, object, at, faults);
    }
}

fn validate_object(
    root: &Value,
    rules: &Map<String, Value>,
    object: &Map<String, Value>,
    at: &str,
    faults: &mut Vec<String>,
) {
    let Some(Value::Object(properties)) = rules.get("properties") else {
        return;
    };
    assert_eq!(rules["additionalProperties"], false, "{at}");
    for (key, value) in object {
        assert!(is_snake_case(key), "{at}.{key}");
        match properties.get(key) {
            Some(schema) => validate(root, schema, value, &format!("{at}.{key}"), faults),
            None => faults.push(format!("{at}.{key}: is not documented")),
        }
    }
    let required = rules["required"].as_array().unwrap().iter();
    let required: BTreeSet<&str> = required.filter_map(Value::as_str).collect();
    for key in required {
        if !object.contains_key(key) {
            faults.push(format!("{at}.{key}: is missing"));
        }
    }
}

fn is_of_type(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("the type {other} is not known here"),
    }
}

fn is_snake_case(key: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    key.bytes().all(is_letter)
}

#[test]
fn documents_that_break_the_schema_are_found() {
    let faults_of = |document: &str| {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let document = serde_json::from_str(document).unwrap();
        let mut faults = Vec::new();
        validate(
            &schema,
            &schema["$defs"]["resize"],
            &document,
            "",
            &mut faults,
        );
        faults.len()
    };
    let sound = r#"{"image": "a", "before_bytes": 1, "after_bytes": 2}"#;
    assert_eq!(faults_of(sound), 0);
    for broken in [
        r#"{"image": "a", "before_bytes": 1}"#,
        r#"{"image": "a", "before_bytes": "1", "after_bytes": 2}"#,
        r#"{"image": "a", "before_bytes": -1, "after_bytes": 2}"#,
        r#"{"image": "a", "before_bytes": 1, "after_bytes": 2, "more": 3}"#,
        "[]",
    ] {
        assert_eq!(faults_of(broken), 1, "{broken}");
    }
}
