//! How figures fit a terminal: a head, and tables that share the lines below it.
//!
//! River: figures → **layout** → the terminal. Pure.

use crate::style::{Emphasis, Paint};

/// A size in characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScreenSize {
    pub(super) width: usize,
    pub(super) height: usize,
}

/// A text with its emphasis, if any.
#[derive(Clone, Debug)]
pub(super) struct ScreenPart {
    pub(super) text: String,
    pub(super) emphasis: Option<Emphasis>,
}

impl ScreenPart {
    pub(super) fn plain(text: impl Into<String>) -> ScreenPart {
        ScreenPart { text: text.into(), emphasis: None }
    }

    /// With an emphasis if a condition is true.
    pub(super) fn emphasised(
        text: impl Into<String>,
        emphasis: Emphasis,
        is_on: bool,
    ) -> ScreenPart {
        ScreenPart { text: text.into(), emphasis: is_on.then_some(emphasis) }
    }
}

/// A table: the first column takes the width that the others leave.
pub(super) struct ScreenTable {
    /// The name of each column, and the width of all but the first.
    pub(super) columns: &'static [(&'static str, usize)],
    pub(super) rows: Vec<Vec<ScreenPart>>,
    /// What is printed in place of rows if there are none.
    pub(super) empty: &'static str,
}

/// Everything that is shown.
pub(super) struct TopScreen {
    pub(super) title: String,
    /// Which keys there are.
    pub(super) state: &'static str,
    /// Why there are no newer figures, if so.
    pub(super) trouble: Option<String>,
    /// Names, and figures that stay together.
    pub(super) head: Vec<(&'static str, Vec<ScreenPart>)>,
    pub(super) tables: Vec<ScreenTable>,
}

/// The width of a first column: narrower ones lose other columns, wider ones are not needed.
const FIRST_MIN: usize = 18;
const FIRST_MAX: usize = 48;
/// The width of the names of the head.
const NAMES: usize = 10;

impl TopScreen {
    /// Before the first figures.
    pub(super) fn waiting(server: &str) -> TopScreen {
        let title = format!("headwater top   {server}");
        TopScreen { title, state: "", trouble: None, head: Vec::new(), tables: Vec::new() }
    }

    /// Lines that fit a size.
    pub(super) fn lines(&self, size: ScreenSize, paint: Paint) -> Vec<String> {
        let mut lines = Vec::new();
        let mut title = fit(&self.title, size.width);
        let used = title.chars().count();
        if !self.state.is_empty() && used + 3 + self.state.len() <= size.width {
            let gap = size.width - used - self.state.len();
            title = paint.text(Emphasis::Strong, &title) + &" ".repeat(gap);
            title += &paint.text(Emphasis::Faint, self.state);
            lines.push(title);
        } else {
            lines.push(paint.text(Emphasis::Strong, &title));
        }
        if let Some(why) = &self.trouble {
            let why = fit(&format!("no new figures: {}", clean(why)), size.width);
            lines.push(paint.text(Emphasis::Removed, &why));
        }
        for (name, parts) in &self.head {
            lines.push(head_line(name, parts, size.width, paint));
        }
        let free = size.height.saturating_sub(lines.len());
        for (table, rows) in self.tables.iter().zip(shares(&self.tables, free)) {
            let Some(rows) = rows else { break };
            lines.push(String::new());
            lines.extend(table.lines(rows, size.width, paint));
        }
        lines.truncate(size.height);
        lines
    }
}

/// A name and as many figures as fit.
fn head_line(name: &str, parts: &[ScreenPart], width: usize, paint: Paint) -> String {
    let mut line = paint.text(Emphasis::Faint, &fit(&format!("{name:<NAMES$}"), width));
    let mut used = NAMES;
    for (at, part) in parts.iter().enumerate() {
        let gap = if at == 0 { 0 } else { 3 };
        let text = clean(&part.text);
        used += gap + text.chars().count();
        if used > width {
            break;
        }
        line += &" ".repeat(gap);
        line += &painted(&text, part.emphasis, paint);
    }
    line
}

/// How many rows each table shows; `None` if its head does not fit. Free rows are given to the tables one by one.
fn shares(tables: &[ScreenTable], height: usize) -> Vec<Option<usize>> {
    /// An empty line, the names of the columns, and one row.
    const LEAST: usize = 3;
    let mut free = height;
    let mut shares = Vec::new();
    for _ in tables {
        let fits = free >= LEAST;
        free -= if fits { LEAST } else { 0 };
        shares.push(fits.then_some(1));
    }
    loop {
        let mut grown = false;
        for (share, table) in shares.iter_mut().zip(tables) {
            if let Some(rows) = share
                && free > 0
                && *rows < table.rows.len()
            {
                (*rows, free, grown) = (*rows + 1, free - 1, true);
            }
        }
        if !grown {
            return shares;
        }
    }
}

impl ScreenTable {
    fn lines(&self, rows: usize, width: usize, paint: Paint) -> Vec<String> {
        let [(name, _), others @ ..] = self.columns else { return Vec::new() };
        // The last columns give way.
        let mut shown = others.len();
        let needed = |shown: usize| others[..shown].iter().map(|(_, width)| width).sum::<usize>();
        while shown > 0 && needed(shown) + FIRST_MIN > width {
            shown -= 1;
        }
        let first = (width - needed(shown).min(width)).min(FIRST_MAX);
        let mut head = cell(name, first);
        for (name, width) in &others[..shown] {
            head += &right(name, *width);
        }
        let mut lines = vec![paint.text(Emphasis::Faint, head.trim_end())];
        if self.rows.is_empty() {
            lines.push(fit(self.empty, width));
        }
        for row in self.rows.iter().take(rows) {
            let mut line = String::new();
            for (at, part) in row.iter().enumerate().take(shown + 1) {
                let text = clean(&part.text);
                let text = match at {
                    0 => cell(&text, first),
                    at => right(&text, others[at - 1].1),
                };
                line += &painted(&text, part.emphasis, paint);
            }
            lines.push(line.trim_end().to_owned());
        }
        lines
    }
}

fn painted(text: &str, emphasis: Option<Emphasis>, paint: Paint) -> String {
    emphasis.map_or_else(|| text.to_owned(), |emphasis| paint.text(emphasis, text))
}

/// At most `width` characters; a text that is cut ends with an ellipsis.
fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let cut: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { cut } else { cut + "…" }
}

/// A first column: left-aligned, with a space after it.
fn cell(text: &str, width: usize) -> String {
    format!("{:<width$}", fit(text, width.saturating_sub(1)))
}

/// Another column: right-aligned, with two spaces before it.
fn right(text: &str, width: usize) -> String {
    format!("{:>width$}", fit(text, width.saturating_sub(2)))
}

/// Without control characters: names come from clients.
fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(rows: usize) -> TopScreen {
        let columns = &[("NAME", 0), ("COUNT", 10), ("LAG", 8)];
        let row = |n| {
            vec![
                ScreenPart::plain(format!("row {n}\u{1b}[2J")),
                ScreenPart::plain("7"),
                ScreenPart::plain("1s"),
            ]
        };
        let table = |rows: usize| ScreenTable {
            columns,
            rows: (0..rows).map(row).collect(),
            empty: "none",
        };
        TopScreen {
            title: "headwater top   server".into(),
            state: "q quits",
            trouble: None,
            head: vec![(
                "requests",
                vec![ScreenPart::plain("10/s"), ScreenPart::plain("errors 0/s")],
            )],
            tables: vec![table(rows), table(0), table(rows)],
        }
    }

    #[test]
    fn lines_fit_every_size() {
        let mut screen = screen(30);
        screen.trouble = Some("the server is away ".repeat(20));
        for width in [1, 5, 17, 18, 27, 40, 80, 200] {
            for height in [1, 2, 5, 9, 24, 100] {
                let lines = screen.lines(ScreenSize { width, height }, Paint::with(false));
                assert!(lines.len() <= height, "{width}x{height}");
                for line in lines {
                    assert!(line.chars().count() <= width, "{width}x{height}: {line:?}");
                    assert!(!line.chars().any(char::is_control), "{line:?}");
                }
            }
        }
    }

    #[test]
    fn narrow_terminals_lose_the_last_columns() {
        let text = |width| {
            let size = ScreenSize { width, height: 30 };
            screen(2).lines(size, Paint::with(false)).join("\n")
        };
        assert!(text(80).contains("q quits") && text(80).contains("LAG"));
        let narrow = text(30);
        assert!(!narrow.contains("q quits") && !narrow.contains("LAG"), "{narrow}");
        assert!(narrow.contains("COUNT") && narrow.contains("row 1"), "{narrow}");
    }

    #[test]
    fn tables_share_the_height() {
        let lines = screen(30).lines(ScreenSize { width: 80, height: 20 }, Paint::with(false));
        assert_eq!(lines.len(), 20);
        let rows = |lines: &[String]| lines.iter().filter(|line| line.starts_with("row")).count();
        let second = lines.iter().position(|line| line == "none").unwrap();
        assert_eq!((rows(&lines[..second]), rows(&lines[second..])), (6, 5));
    }
}
