//! The 18 intrinsic functions.

use schema::kinds::workflow::Intrinsic;
use serde_json::{Value as Json, json};

use super::passed;

fn value(expression: &str, input: Json) -> Json {
    let quoted = serde_json::to_string(expression).unwrap();
    let output = passed(&format!("parameters: {{v.$: {quoted}}}"), input);
    output.get("v").cloned().unwrap_or(output)
}

#[test]
fn each_function_gives_what_the_language_says() {
    let data = json!({
        "s": "a b", "n": 3, "list": [1, 2, 2, "x", 1.0, null], "o": {"a": {"k": 1}, "b": 2}, "p": {"a": {"m": 2}},
        "text": "{\"k\": [1]}", "t": "Hi {}, \\{}", "empty": [],
    });
    let failed = json!({"failed": "States.IntrinsicFailure"});
    let mut seen = Vec::new();
    for (expression, wanted) in [
        ("States.Format('Hello {}, {} {}', $.s, $.n, true)", json!("Hello a b, 3 true")),
        (r"States.Format('It\'s \{\} {}', $.o.a)", json!(r#"It's {} {"k":1}"#)),
        ("States.Format($.t, 1)", failed.clone()),
        ("States.Format($.t, 1, 2)", json!("Hi 1, \\2")),
        ("States.Format('{}')", failed.clone()),
        ("States.Format('x', 1)", failed.clone()),
        ("States.StringToJson($.text)", json!({"k": [1]})),
        ("States.StringToJson($.s)", failed.clone()),
        ("States.JsonToString($.o)", json!(r#"{"a":{"k":1},"b":2}"#)),
        ("States.Array()", json!([])),
        ("States.Array(1, 'a', $.n, null)", json!([1, "a", 3, null])),
        ("States.ArrayPartition($.list, 4)", json!([[1, 2, 2, "x"], [1.0, null]])),
        ("States.ArrayPartition($.list, 0)", failed.clone()),
        ("States.ArrayContains($.list, 'x')", json!(true)),
        ("States.ArrayContains($.list, 3)", json!(false)),
        ("States.ArrayContains($.s, 'a')", failed.clone()),
        ("States.ArrayRange(1, 9, 2)", json!([1, 3, 5, 7, 9])),
        ("States.ArrayRange(3, 0, -2)", json!([3, 1])),
        ("States.ArrayRange(1, 9, 0)", failed.clone()),
        ("States.ArrayRange(1, 1001, 1)", failed.clone()),
        ("States.ArrayGetItem($.list, 3)", json!("x")),
        ("States.ArrayGetItem($.list, 6)", failed.clone()),
        ("States.ArrayLength($.list)", json!(6)),
        ("States.ArrayUnique($.list)", json!([1, 2, "x", null])),
        ("States.Base64Encode('Data to encode')", json!("RGF0YSB0byBlbmNvZGU=")),
        ("States.Base64Decode('RGF0YSB0byBlbmNvZGU=')", json!("Data to encode")),
        ("States.Base64Decode('?')", failed.clone()),
        ("States.Hash('input data', 'SHA-1')", json!("aaff4a450a104cd177d28d18d74485e8cae074b7")),
        ("States.Hash('', 'MD5')", json!("d41d8cd98f00b204e9800998ecf8427e")),
        (
            "States.Hash('abc', 'SHA-256')",
            json!("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ),
        ("States.Hash('abc', 'CRC')", failed.clone()),
        ("States.JsonMerge($.o, $.p, false)", json!({"a": {"m": 2}, "b": 2})),
        ("States.JsonMerge($.o, $.p, true)", failed.clone()),
        ("States.JsonMerge($.o, $.n, false)", failed.clone()),
        ("States.MathAdd($.n, -1)", json!(2)),
        ("States.MathAdd(1.5, 1)", json!(3)),
        ("States.MathAdd($.s, 1)", failed.clone()),
        ("States.StringSplit('This.is+a,test=string', '.+,=')", json!(["This", "is", "a", "test", "string"])),
        ("States.StringSplit($.s, ',')", json!(["a b"])),
        ("States.MathRandom(1, 2)", json!(1)),
        ("States.MathRandom(2, 2)", failed.clone()),
        ("States.ArrayLength($.none)", failed),
        (
            "States.Format('{}', States.ArrayGetItem(States.StringSplit($.s, ' '), States.MathAdd(1, 0)))",
            json!("b"),
        ),
    ] {
        assert_eq!(value(expression, data.clone()), wanted, "{expression}");
        seen.push(expression);
    }
    for function in Intrinsic::ALL.iter().filter(|function| **function != Intrinsic::Uuid) {
        assert!(seen.iter().any(|text| text.contains(&format!("{function}("))), "{function} has no case");
    }
}

#[test]
fn random_values_differ_from_each_other_and_come_again_in_a_replay() {
    let template = "parameters: {u.$: 'States.UUID()', v.$: 'States.UUID()', r.$: 'States.MathRandom(1, 1000000)', \
                    s.$: 'States.MathRandom(1, 1000000, 7)', t.$: 'States.MathRandom(1, 1000000, 7)'}";
    let (first, again) = (passed(template, json!({})), passed(template, json!({})));
    assert_eq!(first, again);
    assert_ne!(first["u"], first["v"]);
    assert_eq!(first["s"], first["t"]);
    let uuid = first["u"].as_str().unwrap();
    assert_eq!((uuid.len(), uuid.as_bytes()[14]), (36, b'4'), "{uuid}");
    let number = first["r"].as_i64().unwrap();
    assert!((1..1_000_000).contains(&number));
}

#[test]
fn a_text_too_long_to_be_encoded_fails() {
    let long = json!({"s": "x".repeat(10_001)});
    assert_eq!(value("States.Base64Encode($.s)", long.clone()), json!({"failed": "States.IntrinsicFailure"}));
    assert_eq!(value("States.Hash($.s, 'MD5')", long), json!({"failed": "States.IntrinsicFailure"}));
}

#[test]
fn no_function_makes_more_than_256_kib_also_for_another_one() {
    let half = json!({"half": "x".repeat(200 * 1024)});
    let numbers = json!({"numbers": vec![1; 80_000]});
    for (inside, data) in [
        ("States.Array($.half, $.half)", &half),
        ("States.Array(States.Format('{}{}', $.half, $.half))", &half),
        ("States.Array(States.Format('{}{}{}', 1, $.numbers, $.numbers))", &numbers),
        ("States.ArrayPartition($.numbers, 1)", &numbers),
        (
            "States.Array(States.JsonToString(States.JsonToString($.quotes)))",
            &json!({"quotes": "\"\\".repeat(50_000)}),
        ),
        ("States.StringSplit($.commas, ',')", &json!({"commas": "a,".repeat(80_000)})),
        (
            "States.Array(States.ArrayLength(States.Array($.half)), States.ArrayLength(States.Array($.half, $.half)))",
            &half,
        ),
    ] {
        let made = value(&format!("States.ArrayLength({inside})"), data.clone());
        assert_eq!(made, json!({"failed": "States.DataLimitExceeded"}), "{inside}");
    }
    assert_eq!(value("States.ArrayLength(States.Array($.half))", half.clone()), json!(1));
    let twice =
        "States.MathAdd(States.ArrayLength(States.Array($.half)), States.ArrayLength(States.Array($.half)))";
    assert_eq!(value(twice, half), json!(2), "what a function has given back counts no more");
}

// Comparing every pair would take minutes.
#[test]
fn a_long_list_has_its_values_once_each_soon() {
    let numbers: Vec<u32> = (0..40_000).collect();
    let unique = value("States.ArrayLength(States.ArrayUnique($.l))", json!({"l": numbers}));
    assert_eq!(unique, json!(40_000));
    let mixed = json!({"l": [0, -0.0, "0", [0], [0.0], [0], null, "null", true]});
    assert_eq!(value("States.ArrayUnique($.l)", mixed), json!([0, "0", [0], [0.0], null, "null", true]));
}
