//! Samples in the Prometheus text format.
//!
//! River: `/metrics` → **samples** → figures. Pure.

use std::collections::BTreeMap;

/// The samples of one reading.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(BTreeMap<String, Vec<MetricSample>>);

#[derive(Clone, Debug, PartialEq)]
struct MetricSample {
    labels: Vec<(String, String)>,
    value: f64,
}

impl MetricSample {
    fn label(&self, name: &str) -> &str {
        let found = self.labels.iter().find(|(label, _)| label == name);
        found.map_or("", |(_, value)| value.as_str())
    }
}

impl Samples {
    /// Reads a text; lines that are not samples are left out.
    pub(super) fn parse(text: &str) -> Samples {
        let mut samples: BTreeMap<String, Vec<MetricSample>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some((name, sample)) = sample(line) {
                samples.entry(name.to_owned()).or_default().push(sample);
            }
        }
        Samples(samples)
    }

    /// The sum of all samples of a family whose labels satisfy a condition.
    pub(super) fn sum(&self, name: &str, wanted: impl Fn(&dyn Fn(&str) -> String) -> bool) -> f64 {
        let all = self.0.get(name).into_iter().flatten();
        all.filter(|sample| wanted(&|label| sample.label(label).to_owned()))
            .map(|sample| sample.value)
            .fold(0.0, |sum, value| sum + value)
    }

    /// The sums of a family by the value of a label.
    pub(super) fn by(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.0.get(name).into_iter().flatten() {
            *sums.entry(sample.label(label).to_owned()).or_default() += sample.value;
        }
        sums
    }

    /// The sums of a family by the values of two labels.
    pub(super) fn by_both(
        &self,
        name: &str,
        (first, second): (&str, &str),
    ) -> BTreeMap<(String, String), f64> {
        let mut sums = BTreeMap::new();
        for sample in self.0.get(name).into_iter().flatten() {
            let labels = (sample.label(first).to_owned(), sample.label(second).to_owned());
            *sums.entry(labels).or_default() += sample.value;
        }
        sums
    }

    /// The buckets of a histogram, by the value of a label: upper bounds and counts.
    pub(super) fn buckets(&self, name: &str, label: &str) -> BTreeMap<String, Vec<(f64, f64)>> {
        let mut all: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for sample in self.0.get(name).into_iter().flatten() {
            let bound = match sample.label("le") {
                "+Inf" => f64::INFINITY,
                text => text.parse().unwrap_or(f64::NAN),
            };
            let buckets = all.entry(sample.label(label).to_owned()).or_default();
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        for buckets in all.values_mut() {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        all
    }
}

/// `name{a="b"} 1`
fn sample(line: &str) -> Option<(&str, MetricSample)> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = value.split_whitespace().next()?.parse().ok()?;
    Some((name, MetricSample { labels, value }))
}

type Labels = Vec<(String, String)>;

/// The labels up to the closing brace, and the text after it.
fn labels(text: &str) -> Option<(Labels, &str)> {
    let mut labels = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, c) => value.push(c),
            }
        };
        labels.push((name.to_owned(), value));
        rest = &quoted[end + 1..];
    }
}

/// The bound below which a share of the observations between two readings is.
pub(super) fn quantile(before: &[(f64, f64)], after: &[(f64, f64)], share: f64) -> Option<f64> {
    let earlier = |bound: f64| {
        before.iter().find(|(known, _)| *known == bound).map_or(0.0, |(_, count)| *count)
    };
    let counts: Vec<(f64, f64)> =
        after.iter().map(|(bound, count)| (*bound, count - earlier(*bound))).collect();
    let total = counts.last().map_or(0.0, |(_, count)| *count);
    if total <= 0.0 {
        return None;
    }
    counts.iter().find(|(_, count)| *count >= total * share).map(|(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP a x\n# TYPE a counter\na{verb=\"LIST\",code=\"200\"} 3\n\
        a{verb=\"LIST\",code=\"404\"} 1\na{verb=\"say \\\"hi, }\\\"\"} 5\nplain 7\nbroken{ 1\n";

    #[test]
    fn samples_are_summed_by_label() {
        let samples = Samples::parse(TEXT);
        assert_eq!(samples.by("a", "verb")["LIST"], 4.0);
        assert_eq!(samples.by("a", "verb")["say \"hi, }\""], 5.0);
        assert_eq!(samples.sum("a", |label| label("code") == "404"), 1.0);
        assert_eq!(samples.sum("plain", |_| true), 7.0);
        assert_eq!(samples.sum("none", |_| true), 0.0);
    }

    #[test]
    fn a_quantile_is_that_of_the_time_between_two_readings() {
        let before = [(0.1, 100.0), (1.0, 100.0), (f64::INFINITY, 100.0)];
        let after = [(0.1, 150.0), (1.0, 199.0), (f64::INFINITY, 200.0)];
        assert_eq!(quantile(&before, &after, 0.5), Some(0.1));
        assert_eq!(quantile(&before, &after, 0.99), Some(1.0));
        assert_eq!(quantile(&before, &after, 1.0), Some(f64::INFINITY));
        assert_eq!(quantile(&before, &before, 0.5), None);
    }
}
