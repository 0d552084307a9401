//! The intrinsic functions of payload templates: `States.Format('{} of {}', $.part, $.whole)`.
//!
//! Arguments are texts in single quotes, numbers, `true`, `false`, `null`, paths and other functions. The run
//! engine evaluates the functions.

use std::fmt;

use serde_json::{Number, Value as Json};

use super::path::{JsonPath, PathError, Reader};

/// Maximum length of an expression in bytes.
const EXPRESSION_MAX_BYTES: usize = 10_000;

/// Maximum nesting of functions: the language's own limit.
pub const INTRINSIC_NESTING_MAX: usize = 10;

/// Source of the value of a field `x.$`.
#[derive(Debug, Clone, PartialEq)]
pub enum Expression {
    /// A path.
    Path(JsonPath),
    /// An intrinsic function.
    Call(IntrinsicCall),
}

/// A function with a valid number of arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct IntrinsicCall {
    /// Function to call.
    pub function: Intrinsic,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
}

/// An argument of a function.
#[derive(Debug, Clone, PartialEq)]
pub enum Argument {
    /// A text with its escapes, because a template of `States.Format` must distinguish `\{}` from `{}`;
    /// [`unescaped`] removes them.
    Text(String),
    /// A number, a boolean or null.
    Literal(Json),
    /// A path.
    Path(JsonPath),
    /// The result of another function.
    Call(IntrinsicCall),
}

/// Type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParameterType {
    Any,
    Text,
    Number,
    Boolean,
    List,
    Object,
}

impl ParameterType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Any => "a value",
            Self::Text => "a text",
            Self::Number => "a number",
            Self::Boolean => "true or false",
            Self::List => "a list",
            Self::Object => "an object",
        }
    }
}

macro_rules! intrinsics {
    ($($name:ident $text:literal [$($wanted:ident)*] $optional:literal $more:literal)*) => {
        /// An intrinsic function.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Intrinsic {
            $(#[doc = concat!("`", $text, "`")] $name,)*
        }

        impl Intrinsic {
            /// Every intrinsic function.
            pub const ALL: &[Intrinsic] = &[$(Intrinsic::$name),*];

            /// Returns the name, with `States.`
            pub fn as_str(self) -> &'static str {
                match self { $(Intrinsic::$name => $text,)* }
            }

            /// Returns the parameters, the number of optional ones at the end, and true if more arguments may follow.
            fn parameters(self) -> (&'static [ParameterType], usize, bool) {
                match self { $(Intrinsic::$name => (&[$(ParameterType::$wanted),*], $optional, $more),)* }
            }
        }
    };
}

intrinsics! {
    Array "States.Array" [] 0 true
    ArrayContains "States.ArrayContains" [List Any] 0 false
    ArrayGetItem "States.ArrayGetItem" [List Number] 0 false
    ArrayLength "States.ArrayLength" [List] 0 false
    ArrayPartition "States.ArrayPartition" [List Number] 0 false
    ArrayRange "States.ArrayRange" [Number Number Number] 0 false
    ArrayUnique "States.ArrayUnique" [List] 0 false
    Base64Decode "States.Base64Decode" [Text] 0 false
    Base64Encode "States.Base64Encode" [Text] 0 false
    Format "States.Format" [Text] 0 true
    Hash "States.Hash" [Any Text] 0 false
    JsonMerge "States.JsonMerge" [Object Object Boolean] 0 false
    JsonToString "States.JsonToString" [Any] 0 false
    MathAdd "States.MathAdd" [Number Number] 0 false
    MathRandom "States.MathRandom" [Number Number Number] 1 false
    StringSplit "States.StringSplit" [Text Text] 0 false
    StringToJson "States.StringToJson" [Text] 0 false
    Uuid "States.UUID" [] 0 false
}

/// Error for text that is neither a path nor a valid call of a function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// Not a path, or a call with a mistake at the given character.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A variable `$name`, which the language's `Assign` sets.
    #[error("`{0}` is a variable")]
    Variable(String),
    /// The function does not exist.
    #[error("unknown intrinsic function `{0}`")]
    Unknown(String),
    /// Too few or too many arguments.
    #[error("{function} takes {wanted}, not {found}")]
    Count {
        /// Name of the function.
        function: &'static str,
        /// Accepted number of arguments, in words.
        wanted: String,
        /// Actual number of arguments.
        found: usize,
    },
    /// An argument that can never have the required type.
    #[error("argument {at} of {function} must be {wanted}")]
    Argument {
        /// Name of the function.
        function: &'static str,
        /// Position of the argument, from 1.
        at: usize,
        /// Required type.
        wanted: &'static str,
    },
    /// Functions are nested too deeply.
    #[error("functions are nested more than {INTRINSIC_NESTING_MAX} deep")]
    TooDeep,
    /// The expression is too long.
    #[error("the expression is longer than {EXPRESSION_MAX_BYTES} bytes")]
    TooLong,
}

impl Expression {
    /// Parses the text of a field `x.$`.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        if !text.starts_with("States.") {
            return Ok(Self::Path(JsonPath::parse(text)?));
        }
        if text.len() > EXPRESSION_MAX_BYTES {
            return Err(ExpressionError::TooLong);
        }
        let mut reader = Reader { text, rest: text };
        let call = reader.call(0)?;
        if reader.rest.is_empty() { Ok(Self::Call(call)) } else { Err(reader.syntax_error("the end").into()) }
    }
}

/// Removes the escapes of a text: `\'` is a quote, `\\` a backslash, `\{` a brace.
pub fn unescaped(raw: &str) -> String {
    let mut plain = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(char) = chars.next() {
        plain.push(if char == '\\' { chars.next().unwrap_or(char) } else { char });
    }
    plain
}

impl Reader<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn call(&mut self, depth: usize) -> Result<IntrinsicCall, ExpressionError> {
        if depth >= INTRINSIC_NESTING_MAX {
            return Err(ExpressionError::TooDeep);
        }
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '.')).unwrap_or(self.rest.len());
        let name = self.take(end);
        let known = Intrinsic::ALL.iter().find(|function| function.as_str() == name);
        let Some(function) = known.copied() else { return Err(ExpressionError::Unknown(name.to_owned())) };
        if !self.eat('(') {
            return Err(self.syntax_error("`(`").into());
        }
        let mut arguments = Vec::new();
        self.skip_space();
        if !self.eat(')') {
            loop {
                self.skip_space();
                arguments.push(self.argument(depth)?);
                self.skip_space();
                if self.eat(')') {
                    break;
                }
                if !self.eat(',') {
                    return Err(self.syntax_error("`,` or `)`").into());
                }
            }
        }
        check_arguments(function, &arguments)?;
        Ok(IntrinsicCall { function, arguments })
    }

    fn argument(&mut self, depth: usize) -> Result<Argument, ExpressionError> {
        match self.rest.chars().next() {
            Some('\'') => self.quoted_argument(),
            Some('$') => self.path(),
            Some('S') => self.call(depth + 1).map(Argument::Call),
            Some(first) if first == '-' || first.is_ascii_digit() => self.number_argument(),
            _ => self.keyword(),
        }
    }

    fn quoted_argument(&mut self) -> Result<Argument, ExpressionError> {
        let body = &self.rest[1..];
        let mut is_escaped = false;
        for (at, char) in body.char_indices() {
            match char {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '\'' => {
                    self.rest = &body[at + 1..];
                    return Ok(Argument::Text(body[..at].to_owned()));
                }
                _ => {}
            }
        }
        Err(self.syntax_error("the closing quote of this text").into())
    }

    /// Parses a path, which ends at a comma, a closing parenthesis or a space outside of its brackets.
    fn path(&mut self) -> Result<Argument, ExpressionError> {
        let (mut brackets, mut quote) = (0_u32, None);
        let ends = |(_, char): &(usize, char)| {
            match (quote, *char) {
                (Some(open), char) if open == char => quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') if brackets > 0 => quote = Some(*char),
                (None, '[') => brackets += 1,
                (None, ']') => brackets = brackets.saturating_sub(1),
                (None, ',' | ')' | ' ') => return brackets == 0,
                _ => {}
            }
            false
        };
        let end = self.rest.char_indices().find(ends).map_or(self.rest.len(), |(at, _)| at);
        let text = self.take(end);
        let after = text.trim_start_matches('$').chars().next();
        if after.is_some_and(|first| first.is_alphabetic() || first == '_') {
            return Err(ExpressionError::Variable(text.to_owned()));
        }
        Ok(Argument::Path(JsonPath::parse(text)?))
    }

    fn number_argument(&mut self) -> Result<Argument, ExpressionError> {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let number = self.rest[..end].parse::<Number>().map_err(|_| self.syntax_error("a number"))?;
        self.take(end);
        Ok(Argument::Literal(Json::Number(number)))
    }

    fn keyword(&mut self) -> Result<Argument, ExpressionError> {
        let words = [("true", Json::Bool(true)), ("false", Json::Bool(false)), ("null", Json::Null)];
        for (word, value) in words {
            if self.rest.starts_with(word) {
                self.take(word.len());
                return Ok(Argument::Literal(value));
            }
        }
        Err(self.syntax_error("text in single quotes, a number, a path or a function").into())
    }
}

/// Checks that the function accepts arguments of this number and type.
fn check_arguments(function: Intrinsic, arguments: &[Argument]) -> Result<(), ExpressionError> {
    let (wanted, optional, more) = function.parameters();
    let (least, found) = (wanted.len() - optional, arguments.len());
    if found < least || (found > wanted.len() && !more) {
        let plural = if wanted.len() == 1 && !more { "argument" } else { "arguments" };
        let words = match (wanted.len(), optional, more) {
            (0, ..) => "no arguments".to_owned(),
            (_, _, true) => format!("{least} or more {plural}"),
            (most, 0, false) => format!("{most} {plural}"),
            (most, ..) => format!("{least} to {most} {plural}"),
        };
        return Err(ExpressionError::Count { function: function.as_str(), wanted: words, found });
    }
    for (index, (wanted, argument)) in wanted.iter().zip(arguments).enumerate() {
        let fits = match argument {
            Argument::Path(_) | Argument::Call(_) => true,
            Argument::Text(_) => matches!(wanted, ParameterType::Any | ParameterType::Text),
            Argument::Literal(Json::Number(_)) => {
                matches!(wanted, ParameterType::Any | ParameterType::Number)
            }
            Argument::Literal(Json::Bool(_)) => matches!(wanted, ParameterType::Any | ParameterType::Boolean),
            Argument::Literal(_) => matches!(wanted, ParameterType::Any),
        };
        if !fits {
            let function = function.as_str();
            return Err(ExpressionError::Argument { function, at: index + 1, wanted: wanted.as_str() });
        }
    }
    Ok(())
}

impl fmt::Display for Intrinsic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> IntrinsicCall {
        match Expression::parse(text) {
            Ok(Expression::Call(call)) => call,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn functions_are_read_with_all_sorts_of_arguments() {
        let read = call(
            r"States.Array('it\'s', -1.5, true, null, $.a['x, (y)'][0], $$.Execution.Id, States.UUID())",
        );
        assert_eq!(read.function, Intrinsic::Array);
        assert_eq!(read.arguments.len(), 7);
        assert_eq!(read.arguments[0], Argument::Text(r"it\'s".to_owned()));
        assert_eq!(read.arguments[1], Argument::Literal(serde_json::json!(-1.5)));
        assert_eq!(read.arguments[4], Argument::Path(JsonPath::parse("$.a['x, (y)'][0]").unwrap()));
        assert_eq!(read.arguments[6], Argument::Call(call("States.UUID()")));
        assert_eq!(Intrinsic::ALL.len(), 18, "the language has 18 functions");
        assert!(matches!(Expression::parse("$.x"), Ok(Expression::Path(_))));
        assert_eq!(unescaped(r"it\'s \{\} \\"), r"it's {} \");
    }

    #[test]
    fn what_can_not_be_called_is_reported() {
        let deep = format!("{}$.x{}", "States.Array(".repeat(11), ")".repeat(11));
        for (text, error) in [
            ("States.Upper($.x)", "unknown intrinsic function `States.Upper`"),
            ("States.UUID(1)", "States.UUID takes no arguments, not 1"),
            ("States.MathAdd(1)", "States.MathAdd takes 2 arguments, not 1"),
            ("States.MathRandom(1)", "States.MathRandom takes 2 to 3 arguments, not 1"),
            ("States.Format()", "States.Format takes 1 or more arguments, not 0"),
            ("States.MathAdd(1,'-1')", "argument 2 of States.MathAdd must be a number"),
            ("States.Array(1", "expected `,` or `)` at character 15"),
            ("States.Array('a)", "expected the closing quote of this text at character 14"),
            ("States.Array(1) x", "expected the end at character 16"),
            (
                "States.Array(x)",
                "expected text in single quotes, a number, a path or a function at character 14",
            ),
            ("States.Array($.a..b)", "`..` steps are not supported in paths"),
            ("States.Array($name)", "`$name` is a variable"),
            (deep.as_str(), "functions are nested more than 10 deep"),
            ("ipsum", "a path begins with `$`"),
        ] {
            let found = Expression::parse(text).map_err(|error| error.to_string());
            assert_eq!(found, Err(error.to_owned()), "{text}");
        }
    }
}
