//! A filesystem as JSON: what it says about itself, and its space.

use platter::vfs::{Description, Detail, DetailValue, FeatureClass, StatFs};
use serde_json::{Map, Value, json};

use super::json::put_name;

/// A filesystem, and its space where that is known.
pub(crate) fn filesystem_object(description: &Description, space: Option<&StatFs>) -> Value {
    let mut object = Map::new();
    object.insert("type".into(), json!(description.kind));
    object.insert("uuid".into(), json!(description.uuid.to_string()));
    put_name(&mut object, "label", &description.label);
    let features = description.features.iter();
    let features =
        features.map(|feature| json!({"name": feature.name, "class": class(feature.class)}));
    object.insert("features".into(), features.collect());
    object.insert("details".into(), record(&description.details));
    if let Some(space) = space {
        let space = json!({
            "block_bytes": space.block_bytes,
            "blocks": space.blocks,
            "blocks_free": space.blocks_free,
            "blocks_available": space.blocks_available,
            "inodes": space.inodes,
            "inodes_free": space.inodes_free,
        });
        object.insert("space".into(), space);
    }
    Value::Object(object)
}

fn class(class: FeatureClass) -> &'static str {
    match class {
        FeatureClass::Compatible => "compatible",
        FeatureClass::ReadOnlyCompatible => "read_only_compatible",
        FeatureClass::Incompatible => "incompatible",
    }
}

fn record(details: &[Detail]) -> Value {
    let mut object = Map::new();
    for detail in details {
        put_detail(&mut object, detail);
    }
    Value::Object(object)
}

fn put_detail(object: &mut Map<String, Value>, detail: &Detail) {
    let value = match &detail.value {
        DetailValue::Name(bytes) => return put_name(object, &detail.key, bytes),
        DetailValue::Absent(_) => Value::Null,
        DetailValue::Flag(flag) => json!(flag),
        DetailValue::Number(number) => json!(number),
        DetailValue::Hexadecimal(number) => json!(number),
        DetailValue::Word(word) => json!(word),
        DetailValue::Text(text) => json!(text),
        DetailValue::Uuid(uuid) => json!(uuid.to_string()),
        DetailValue::Time(time) => {
            json!({"seconds": time.seconds, "nanoseconds": time.nanoseconds})
        }
        DetailValue::Item { fields, .. } => {
            let list = object.entry(&*detail.key).or_insert_with(|| json!([]));
            if let Value::Array(list) = list {
                list.push(record(fields));
            }
            return;
        }
        DetailValue::Record { fields, .. } => record(fields),
    };
    object.insert(detail.key.to_string(), value);
}
