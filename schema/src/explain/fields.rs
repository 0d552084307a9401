//! Human view of a kind's JSON Schema: fields with their types, defaults and values.

use std::collections::BTreeMap;

use serde_json::Value as Json;

/// A subschema within a whole schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct SchemaView<'a> {
    whole: &'a Json,
    here: &'a Json,
}

/// A field of an object.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    pub(super) name: &'a str,
    pub(super) required: bool,
    pub(super) shape: SchemaView<'a>,
    /// For an object with variants: the variants that have the field, unless all have it.
    pub(super) only_in: Vec<&'a str>,
    /// For the field that selects the variant: every variant.
    pub(super) variant_names: Vec<&'a str>,
}

impl<'a> SchemaView<'a> {
    pub(super) fn root(whole: &'a Json) -> Self {
        Self { whole, here: whole }
    }

    /// Returns a definition of the schema by name.
    pub(super) fn definition(whole: &'a Json, name: &str) -> Self {
        Self { whole, here: &whole["$defs"][name] }
    }

    fn at(self, here: &'a Json) -> Self {
        Self { here, ..self }
    }

    /// Resolves a reference; the schema itself if it is none.
    fn target(self) -> Self {
        match self.reference() {
            Some(name) => self.at(&self.whole["$defs"][name]),
            None => self,
        }
    }

    /// Returns the name of the referenced type.
    fn reference(self) -> Option<&'a str> {
        self.here["$ref"].as_str()?.strip_prefix("#/$defs/")
    }

    pub(super) fn description(self) -> &'a str {
        let own = self.here["description"].as_str();
        own.or_else(|| self.target().here["description"].as_str()).unwrap_or_default()
    }

    /// Returns the default as written in a manifest.
    pub(super) fn default(self) -> Option<String> {
        match self.here.get("default")? {
            Json::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    /// Returns the words that a value or its items may be, each with its meaning.
    pub(super) fn values(self) -> Vec<(&'a str, &'a str)> {
        let target = self.target();
        if let Some(items) = target.here.get("items") {
            return target.at(items).values();
        }
        if let Some(word) = target.here["const"].as_str() {
            return vec![(word, "")];
        }
        if let Some(words) = target.here["enum"].as_array() {
            return words.iter().filter_map(Json::as_str).map(|word| (word, "")).collect();
        }
        let branches = target.here["oneOf"].as_array().map(Vec::as_slice).unwrap_or_default();
        let word = |branch: &'a Json| {
            Some((branch["const"].as_str()?, branch["description"].as_str().unwrap_or_default()))
        };
        branches.iter().filter_map(word).collect()
    }

    /// Returns the type as text: `[]Container`, `map[string]string`, `integer or string`.
    pub(super) fn type_name(self) -> String {
        let target = self.target();
        let Some(keys) = target.here.as_object() else { return "any".to_owned() };
        if target.properties().is_some() || target.variants().is_some() {
            return self.reference().unwrap_or("object").to_owned();
        }
        if !target.values().is_empty() && !keys.contains_key("items") {
            return "string".to_owned();
        }
        if let Some(branches) = target.here["anyOf"].as_array() {
            if branches.iter().any(|branch| branch.get("pattern").is_some()) {
                return "quantity".to_owned();
            }
            let names: Vec<String> = branches.iter().map(|branch| target.at(branch).type_name()).collect();
            return names.join(" or ");
        }
        match target.here["type"].as_str() {
            Some("array") => format!("[]{}", target.at(&target.here["items"]).type_name()),
            Some("object") => match keys.get("additionalProperties") {
                Some(values) if values.is_object() => format!("map[string]{}", target.at(values).type_name()),
                Some(Json::Bool(false)) => "object".to_owned(),
                _ => "map[string]any".to_owned(),
            },
            Some(name) => name.to_owned(),
            None => match target.here["type"].as_array() {
                Some(names) => names.iter().filter_map(Json::as_str).collect::<Vec<_>>().join(" or "),
                None => "any".to_owned(),
            },
        }
    }

    /// Returns the name of the object type inside lists and maps, for links.
    pub(super) fn object_name(self) -> Option<&'a str> {
        let (shape, _) = self.object()?;
        shape.reference()
    }

    /// Returns the object inside lists and maps, with its reference kept, and whether a map's key precedes it.
    pub(super) fn object(self) -> Option<(Self, bool)> {
        let target = self.target();
        if target.properties().is_some() || target.variants().is_some() {
            return Some((self, false));
        }
        if let Some(items) = target.here.get("items") {
            return target.at(items).object();
        }
        if let Some(values) = target.here.get("additionalProperties").filter(|values| values.is_object()) {
            return target.at(values).object().map(|(shape, _)| (shape, true));
        }
        let branches = target.here["anyOf"].as_array()?;
        branches.iter().find_map(|branch| target.at(branch).object())
    }

    fn properties(self) -> Option<&'a serde_json::Map<String, Json>> {
        self.here["properties"].as_object()
    }

    /// Returns the variants of an object: the value of the distinguishing field, and the variant.
    fn variants(self) -> Option<Vec<(&'a str, Self)>> {
        let branches = self.here["oneOf"].as_array().filter(|branches| !branches.is_empty())?;
        let variant = |branch: &'a Json| {
            let variant = self.at(branch).target();
            let mut words = variant.properties()?.values().filter_map(|field| field["const"].as_str());
            Some((words.next()?, variant))
        };
        branches.iter().map(variant).collect()
    }

    /// Returns the fields of an object, sorted by name.
    pub(super) fn fields(self) -> Vec<Field<'a>> {
        let target = self.target();
        let Some(variants) = target.variants() else { return target.own_fields() };
        let count = variants.len();
        let mut all: BTreeMap<&str, Field<'a>> = BTreeMap::new();
        for (word, variant) in variants {
            for field in variant.own_fields() {
                let known = all.entry(field.name).or_insert_with(|| field.clone());
                known.required &= field.required;
                if field.shape.here["const"].as_str() == Some(word) {
                    known.variant_names.push(word);
                }
                known.only_in.push(word);
            }
        }
        let mut fields: Vec<Field<'a>> = all.into_values().collect();
        for field in &mut fields {
            if field.only_in.len() == count {
                field.only_in.clear();
            } else {
                field.required = false;
            }
        }
        fields
    }

    fn own_fields(self) -> Vec<Field<'a>> {
        let required = self.here["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        let field = |(name, schema): (&'a String, &'a Json)| Field {
            name,
            required: required.iter().any(|word| word == name),
            shape: self.at(schema),
            only_in: Vec::new(),
            variant_names: Vec::new(),
        };
        let mut fields: Vec<Field<'a>> = self.properties().into_iter().flatten().map(field).collect();
        fields.sort_by_key(|field| field.name);
        fields
    }
}
