//! What the source of a chat template may look like. It comes out of a model file, so out of anybody's hands, and the
//! engine that compiles it recurses along chains of operators, brackets and nested tags, mostly without a limit of its
//! own. The bounds here keep that far from the end of a stack, and every real template is far below them.
//!
//! What is counted are the tokens of the engine itself, so nothing is compiled that was not seen here.

use minijinja::machinery::{Span, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

/// Bytes of a template. The longest real ones have some 30 KB.
const SOURCE_MAX: usize = 256 << 10;
/// Tags of a template, `{{ … }}` and `{% … %}`. The longest real ones have several hundred.
const TAGS_MAX: usize = 8_000;
/// Operators that nest into each other, brackets among them: `a.b.c`, `not not a`, `a + b + c`, `(((a)))`. Real
/// templates have some thirty. Compiling takes time with the square of it.
const OPERATORS_MAX: usize = 200;
/// Brackets inside brackets.
const BRACKETS_MAX: usize = 32;
/// Blocks inside blocks. Each `elif` is inside the one in front of it.
const BLOCKS_MAX: usize = 80;
/// A macro inside another counts as so many blocks.
const MACRO: usize = 8;
/// Bytes of a name: it is looked up and compared again and again.
const NAME_MAX: usize = 256;

/// The source as it is compiled: with `generation` blocks, which only mark text for training, as blocks that always
/// run. An error where the source is beyond any real template.
pub(super) fn vet(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    if source.len() > SOURCE_MAX {
        return Err(refuse(format!(
            "a template of {} bytes is longer than the {SOURCE_MAX} it may have",
            source.len()
        )));
    }
    let mut vetting = Vetting::default();
    let mut tag = Tag::default();
    let mut previous = Previous::Other;
    let mut edits = Edits { source, out: String::with_capacity(source.len()), copied: 0 };
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token?;
        match token {
            Token::TemplateData(_) => continue,
            Token::VariableStart | Token::BlockStart => {
                tag = Tag { is_block: matches!(token, Token::BlockStart), ..Tag::default() };
                vetting.tags += 1;
            }
            Token::VariableEnd | Token::BlockEnd => {
                vetting.close(&tag);
                if let (true, 1, Some((span, name))) = (tag.is_block, tag.tokens, tag.name) {
                    edits.without_generation(span, name);
                }
            }
            ref token => tag.add(token, previous, span),
        }
        previous = Previous::of(&token);
        vetting.check(&tag).map_err(|error| refuse(format!("line {}: {error}", span.start_line)))?;
    }
    Ok(edits.finish())
}

fn refuse(text: String) -> Error {
    Error::new(ErrorKind::SyntaxError, text)
}

/// What was seen of a template so far.
#[derive(Default)]
struct Vetting {
    tags: usize,
    /// For each block that is open, how deep it nests: one, and one more for each `elif`.
    blocks: Vec<usize>,
}

impl Vetting {
    /// A tag ends: a block may begin, go on, or end with it.
    fn close(&mut self, tag: &Tag<'_>) {
        let Some((_, name)) = tag.name.filter(|_| tag.is_block) else {
            return;
        };
        match name {
            "set" if tag.assigns => {}
            "for" | "if" | "with" | "set" | "filter" | "autoescape" | "generation" => self.blocks.push(1),
            // Each macro's names are looked for anew in all that is inside it.
            "macro" | "call" => self.blocks.push(MACRO),
            "elif" => {
                if let Some(depth) = self.blocks.last_mut() {
                    *depth += 1;
                }
            }
            _ if name.starts_with("end") => {
                self.blocks.pop();
            }
            _ => {}
        }
    }

    fn check(&self, tag: &Tag<'_>) -> Result<(), String> {
        let blocks = self.blocks.iter().sum();
        for (count, max, what) in [
            (self.tags, TAGS_MAX, "tags"),
            (blocks, BLOCKS_MAX, "blocks inside each other, elif among them"),
            (tag.operators.iter().sum(), OPERATORS_MAX, "operators in one expression"),
            (tag.operators.len() - 1, BRACKETS_MAX, "brackets inside each other"),
            (tag.longest_name, NAME_MAX, "letters in a name"),
        ] {
            if count > max {
                return Err(format!("more than {max} {what} are more than any chat template needs"));
            }
        }
        if tag.has_list && tag.multiplies {
            // The engine would compute it while it compiles, and pay for nothing.
            return Err("a list must not be written in a tag that multiplies constants".to_owned());
        }
        Ok(())
    }
}

/// What was seen of a tag so far.
#[allow(clippy::struct_excessive_bools, reason = "each notes one thing that was seen")]
struct Tag<'a> {
    is_block: bool,
    tokens: usize,
    name: Option<(Span, &'a str)>,
    /// For each bracket that is open, and the tag itself, the operators since the last comma.
    operators: Vec<usize>,
    longest_name: usize,
    assigns: bool,
    has_list: bool,
    /// The token in front multiplies what may be a constant.
    multiplies_next: bool,
    multiplies: bool,
}

impl Default for Tag<'_> {
    fn default() -> Self {
        Self {
            is_block: false,
            tokens: 0,
            name: None,
            operators: vec![0],
            longest_name: 0,
            assigns: false,
            has_list: false,
            multiplies_next: false,
            multiplies: false,
        }
    }
}

impl<'a> Tag<'a> {
    fn add(&mut self, token: &Token<'a>, previous: Previous, span: Span) {
        self.tokens += 1;
        if let (Token::Ident(name), 1) = (token, self.tokens) {
            self.name = Some((span, name));
        }
        if std::mem::take(&mut self.multiplies_next) {
            self.multiplies |= Previous::of(token) != Previous::Variable;
        }
        let outermost = self.operators.len() == 1;
        let mut count = |operators: usize| {
            if let Some(open) = self.operators.last_mut() {
                *open = if operators == 0 { 0 } else { *open + operators };
            }
        };
        match token {
            Token::Comma | Token::Colon => count(0),
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                count(1);
                self.operators.push(0);
                self.has_list |= matches!(token, Token::BracketOpen) && previous == Previous::Other;
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose if !outermost => {
                self.operators.pop();
            }
            Token::Ident("not" | "and" | "or" | "in" | "is" | "if" | "else")
            | Token::Plus
            | Token::Minus
            | Token::Div
            | Token::FloorDiv
            | Token::Pow
            | Token::Mod
            | Token::Dot
            | Token::Tilde
            | Token::Pipe
            | Token::Eq
            | Token::Ne
            | Token::Gt
            | Token::Gte
            | Token::Lt
            | Token::Lte => count(1),
            Token::Ident(name) => self.longest_name = self.longest_name.max(name.len()),
            Token::Assign => self.assigns |= outermost,
            // With nothing in front, it spreads a list to arguments.
            Token::Mul => {
                count(1);
                self.multiplies_next = previous == Previous::Value;
            }
            _ => {}
        }
    }
}

/// What stands in front: behind a value, `[` takes an item of it and begins no list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Previous {
    /// The end of a value that is no constant.
    Variable,
    /// The end of any other value.
    Value,
    Other,
}

impl Previous {
    fn of(token: &Token<'_>) -> Self {
        match token {
            Token::Ident("not" | "and" | "or" | "in" | "is" | "if" | "else") => Self::Other,
            Token::Ident(name) if !matches!(*name, "true" | "True" | "false" | "False" | "none" | "None") => {
                Self::Variable
            }
            Token::Ident(_)
            | Token::Str(_)
            | Token::String(_)
            | Token::Int(_)
            | Token::Int128(_)
            | Token::Float(_)
            | Token::BracketClose
            | Token::ParenClose
            | Token::BraceClose => Self::Value,
            _ => Self::Other,
        }
    }
}

/// The source with some names replaced.
struct Edits<'a> {
    source: &'a str,
    out: String,
    copied: usize,
}

impl Edits<'_> {
    fn without_generation(&mut self, span: Span, name: &str) {
        let instead = match name {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => return,
        };
        self.out.push_str(&self.source[self.copied..span.start_offset as usize]);
        self.out.push_str(instead);
        self.copied = span.end_offset as usize;
    }

    fn finish(mut self) -> String {
        self.out.push_str(&self.source[self.copied..]);
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vetted(source: &str) -> Result<String, String> {
        vet(source, &SyntaxConfig::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn generation_blocks_always_run() {
        let source = "{% generation %}a{%- endgeneration -%}{# {% generation %} #}{{ '{% generation %}' }}";
        let expected = "{% if true %}a{%- endif -%}{# {% generation %} #}{{ '{% generation %}' }}";
        assert_eq!(vetted(source), Ok(expected.to_owned()));
        let raw = "{% raw %}{% generation %}{% endraw %}{{ generation }}{% set generation = 1 %}\n";
        assert_eq!(vetted(raw), Ok(raw.to_owned()));
    }

    #[test]
    fn long_text_many_tags_and_long_tables_are_fine() {
        let table = format!("{{% set names = {{{}}} %}}", "'a': ['b', ('c', 1)], ".repeat(2_000));
        let branches = "{% if a %}{% elif b %}{% elif c %}{% else %}{% endif %}{% set x %}{% endset %}".repeat(500);
        for source in [
            "a - b. ".repeat(30_000),
            "{{ messages[0].content }}".repeat(2_000),
            table,
            branches,
            "{{ '=' * 20 }}{{ x[1] * 2 }}{{ [x * 2, 2 * x] }}{{ f(*[1]) }}{{ [a] * n }}".to_owned(),
        ] {
            assert_eq!(vetted(&source), Ok(source));
        }
    }

    #[test]
    fn what_nests_too_deeply_is_refused_with_its_line() {
        let refused = vetted(&format!("a\n{{{{ {}1 }}}}", "-".repeat(1_000))).unwrap_err();
        assert!(refused.contains("line 2: more than 200 operators"), "{refused}");
        for source in [
            "x".repeat(SOURCE_MAX + 1),
            "{{ 1 }}".repeat(TAGS_MAX + 1),
            format!("{{{{ {} }}}}", "[".repeat(40)),
            format!("{{{{ {}1{} }}}}", "f(1, ".repeat(40), ")".repeat(40)),
            format!("{{{{ 'it\\'s {{{{' ~ {}1 }}}}", "-".repeat(1_000)),
            format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(90)),
            "{% if 0 %}{% else %}".repeat(90),
            "{% set x %}".repeat(90),
            "{% for x in y %}{% with %}".repeat(45),
            format!("{{{{ {} }}}}", "x".repeat(300)),
            "{{ ([0] or 1) * 100000000 }}".to_owned(),
            "{{ 100000000 * [0] }}".to_owned(),
            "{{ [0] * true * 100000000 }}".to_owned(),
            "{{ x if [0] * 100000000 }}".to_owned(),
        ] {
            assert!(vetted(&source).is_err(), "{}", &source[..60]);
        }
    }
}
