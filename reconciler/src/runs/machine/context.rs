//! The context object, `$$`: what a run knows of itself.

use std::cell::OnceCell;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::RunContext;
use super::random::Random;

/// Of one state at one time. The object is made only if a path asks for it.
pub(super) struct Context<'a> {
    pub(super) run: &'a RunContext,
    pub(super) random: &'a Random<'a>,
    pub(super) state: &'a str,
    pub(super) entered: Timestamp,
    pub(super) retries: u32,
    /// Index and value of the item, inside a Map.
    pub(super) item: Option<(usize, &'a Json)>,
    pub(super) made: OnceCell<Json>,
}

impl Context<'_> {
    /// The object, with the language's names.
    pub(super) fn object(&self) -> &Json {
        self.made.get_or_init(|| {
            let RunContext { namespace, workflow, id, input, started_at } = self.run;
            let mut object = json!({
                "Execution": {
                    "Id": format!("{namespace}/{workflow}/{id}"),
                    "Name": id,
                    "Input": input,
                    "StartTime": started_at,
                },
                "StateMachine": { "Id": format!("{namespace}/{workflow}"), "Name": workflow },
                "State": { "Name": self.state, "EnteredTime": self.entered, "RetryCount": self.retries },
            });
            if let (Some((index, value)), Some(fields)) = (self.item, object.as_object_mut()) {
                fields.insert("Map".to_owned(), json!({ "Item": { "Index": index, "Value": value } }));
            }
            object
        })
    }
}
