//! The files of the page, embedded in the program.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, HeaderName};

/// A file of the page.
pub(super) struct PageFile {
    pub(super) content_type: &'static str,
    pub(super) text: &'static str,
}

/// Declares the files: the name and its content type.
macro_rules! files {
    ($($name:literal: $content_type:expr,)*) => {
        /// A file by its name.
        pub(super) fn find(name: &str) -> Option<PageFile> {
            Some(match name {
                $($name => PageFile {
                    content_type: $content_type,
                    text: include_str!(concat!("../../assets/ui/", $name)),
                },)*
                _ => return None,
            })
        }

        #[cfg(test)]
        const NAMES: &[&str] = &[$($name),*];
    };
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

files! {
    "index.html": HTML,
    "style.css": STYLE,
    "mark.svg": IMAGE,
    "boot.js": SCRIPT,
    "app.js": SCRIPT,
    "cells.js": SCRIPT,
    "connection.js": SCRIPT,
    "dom.js": SCRIPT,
    "glyph.js": SCRIPT,
    "live.js": SCRIPT,
    "object.js": SCRIPT,
    "overview.js": SCRIPT,
    "river.js": SCRIPT,
    "route.js": SCRIPT,
    "slim.js": SCRIPT,
    "table.js": SCRIPT,
    "vtable.js": SCRIPT,
    "worker.js": SCRIPT,
    "yaml.js": SCRIPT,
}

/// Everything comes from this server, and no text becomes code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types hw";

/// What the cluster returns is data: a browser that opens it runs nothing.
const DATA_POLICY: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";

/// Sets the headers of a file of the page.
pub(super) fn protect(headers: &mut HeaderMap) {
    set(headers, POLICY);
}

/// Sets the headers of data.
pub(super) fn protect_data(headers: &mut HeaderMap) {
    set(headers, DATA_POLICY);
}

fn set(headers: &mut HeaderMap, policy: &'static str) {
    for (name, value) in [
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if !headers.contains_key(CONTENT_TYPE) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The budget of the page, uncompressed.
    const SIZE_MAX: usize = 300 * 1024;

    #[test]
    fn the_files_fit_the_budget_and_load_nothing_from_elsewhere() {
        let files = NAMES.iter().map(|name| (name, find(name).unwrap().text));
        let size: usize = files.clone().map(|(_, text)| text.len()).sum();
        assert!(size <= SIZE_MAX, "{size} bytes");
        for (name, text) in files {
            let text = text.replace("http://www.w3.org/", "");
            assert!(!text.contains("http://") && !text.contains("https://"), "{name}");
            assert!(!text.contains(".innerHTML") && !text.contains("eval("), "{name}");
        }
    }

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/ui");
        for file in std::fs::read_dir(folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(find(&name).is_some(), "{name}");
        }
    }
}
