//! The compressed headers of a stream.
//!
//! Promise: a block that is malformed or decompresses to more than [`HEADERS_MAX`] bytes is an error; no
//! memory is reserved for lengths that a client claims.

use flate2::{Decompress, FlushDecompress};

use super::frame::SpdyError;

/// The maximum size of the decompressed headers of one stream.
pub(crate) const HEADERS_MAX: usize = 16 * 1024;

/// The words of the compression dictionary, separated by `|`. Each has its length before it, in four
/// bytes.
const DICTIONARY_WORDS: &str = "\
    options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|\
    accept-ranges|age|allow|authorization|cache-control|connection|content-base|\
    content-encoding|content-language|content-length|content-location|content-md5|\
    content-range|content-type|date|etag|expect|expires|from|host|if-match|if-modified-since|\
    if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|\
    proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|\
    transfer-encoding|upgrade|user-agent|vary|via|warning|www-authenticate|method|get|status|\
    200 OK|version|HTTP/1.1|url|public|set-cookie|keep-alive|origin";

/// The end of the dictionary: common values, without lengths.
const DICTIONARY_END: &str = "\
    1001012012022052063003023033043053063074024054064074084094104114124134144154164175025045\
    05203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request40\
    1 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 \
    Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, W\
    ed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/x\
    ml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sd\
    chcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// The checksum of the dictionary, by which a compressed stream names it.
const DICTIONARY_ID: u32 = 0xe3c6_a7c2;

/// An empty stored block, with which a part of a compressed stream ends.
const SYNC_FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

fn dictionary() -> Vec<u8> {
    let mut dictionary = Vec::with_capacity(1_423);
    for word in DICTIONARY_WORDS.split('|') {
        let length = u32::try_from(word.len()).unwrap_or_default();
        dictionary.extend_from_slice(&length.to_be_bytes());
        dictionary.extend_from_slice(word.as_bytes());
    }
    dictionary.extend_from_slice(DICTIONARY_END.as_bytes());
    dictionary
}

/// Reads the header blocks of a connection, which are one compressed stream.
pub(super) struct HeaderReader {
    inflate: Decompress,
}

impl Default for HeaderReader {
    fn default() -> HeaderReader {
        HeaderReader { inflate: Decompress::new(true) }
    }
}

impl HeaderReader {
    /// The names and values of a block.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Vec<(String, String)>, SpdyError> {
        parse(&self.decompress(block)?)
    }

    fn decompress(&mut self, mut block: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut plain = Vec::new();
        let mut chunk = [0; 2048];
        loop {
            let (read, written) = (self.inflate.total_in(), self.inflate.total_out());
            let step = self.inflate.decompress(block, &mut chunk, FlushDecompress::Sync);
            let read = (self.inflate.total_in() - read) as usize;
            let written = (self.inflate.total_out() - written) as usize;
            block = &block[read.min(block.len())..];
            match step {
                Err(error) if error.needs_dictionary() == Some(DICTIONARY_ID) => {
                    let set = self.inflate.set_dictionary(&dictionary());
                    set.map_err(|_| SpdyError("the dictionary does not fit"))?;
                    continue;
                }
                Err(_) => return Err(SpdyError("the headers are not compressed correctly")),
                Ok(_) => {}
            }
            if plain.len() + written > HEADERS_MAX {
                return Err(SpdyError("the headers are too large"));
            }
            plain.extend_from_slice(&chunk[..written]);
            // Output that fits into the chunk is complete.
            if block.is_empty() && written < chunk.len() {
                return Ok(plain);
            }
            if read == 0 && written == 0 {
                return Err(SpdyError("the compressed headers end early"));
            }
        }
    }
}

/// Parses the number of headers, then the length and text of each name and value.
fn parse(mut plain: &[u8]) -> Result<Vec<(String, String)>, SpdyError> {
    let count = number(&mut plain)?;
    let mut headers = Vec::new();
    for _ in 0..count {
        let name = text(&mut plain)?;
        headers.push((name.to_ascii_lowercase(), text(&mut plain)?));
    }
    Ok(headers)
}

fn number(plain: &mut &[u8]) -> Result<usize, SpdyError> {
    let (number, rest) = plain.split_first_chunk().ok_or(SpdyError("the headers end early"))?;
    *plain = rest;
    Ok(u32::from_be_bytes(*number) as usize)
}

fn text(plain: &mut &[u8]) -> Result<String, SpdyError> {
    let length = number(plain)?;
    let parts = plain.split_at_checked(length).ok_or(SpdyError("the headers end early"))?;
    *plain = parts.1;
    String::from_utf8(parts.0.to_vec()).map_err(|_| SpdyError("a header is not text"))
}

/// A block without headers; the first one begins the compressed stream and names the dictionary.
/// Stored blocks need no compressor.
pub(super) fn empty(is_first: bool) -> Vec<u8> {
    let mut block = Vec::with_capacity(20);
    if is_first {
        // Deflate with a window of 32 KiB, and a dictionary.
        block.extend_from_slice(&[0x78, 0x20]);
        block.extend_from_slice(&DICTIONARY_ID.to_be_bytes());
    }
    // A stored block of four bytes: the number zero. Then an empty one: readers such as that of Go
    // return what precedes it, and wait for more without it.
    block.extend_from_slice(&[0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0]);
    block.extend_from_slice(&SYNC_FLUSH);
    block
}

#[cfg(test)]
pub(super) mod tests {
    use flate2::{Compress, Compression, FlushCompress};

    use super::*;

    /// Compresses the header blocks of a client.
    pub(crate) struct HeaderWriter(Compress);

    impl HeaderWriter {
        pub(crate) fn new() -> HeaderWriter {
            let mut deflate = Compress::new(Compression::best(), true);
            assert_eq!(deflate.set_dictionary(&dictionary()).unwrap(), DICTIONARY_ID);
            HeaderWriter(deflate)
        }

        pub(crate) fn block(&mut self, plain: &[u8]) -> Vec<u8> {
            let mut block = Vec::with_capacity(plain.len() + 1024);
            self.0.compress_vec(plain, &mut block, FlushCompress::Sync).unwrap();
            block
        }

        pub(crate) fn headers(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
            let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
            for text in headers.iter().flat_map(|(name, value)| [name, value]) {
                plain.extend_from_slice(&(text.len() as u32).to_be_bytes());
                plain.extend_from_slice(text.as_bytes());
            }
            self.block(&plain)
        }
    }

    #[test]
    fn the_blocks_of_a_connection_are_one_compressed_stream() {
        let (mut writer, mut reader) = (HeaderWriter::new(), HeaderReader::default());
        for port in ["80", "8080"] {
            let block = writer.headers(&[("Streamtype", "data"), ("port", port)]);
            let found = reader.read(&block).unwrap();
            let expected = [("streamtype", "data"), ("port", port)];
            assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
    }

    #[test]
    fn an_empty_block_has_no_headers() {
        let mut reader = HeaderReader::default();
        for is_first in [true, false, false] {
            assert_eq!(reader.read(&empty(is_first)).unwrap(), []);
            assert!(empty(is_first).ends_with(&SYNC_FLUSH), "Go's reader waits for it");
        }
    }

    #[test]
    fn hostile_blocks_are_errors() {
        let huge = u32::MAX.to_be_bytes();
        let too_many = [huge.as_slice(), &[0; 8]].concat();
        let too_long = [&1_u32.to_be_bytes(), huge.as_slice()].concat();
        let not_text = [1_u32.to_be_bytes().as_slice(), &1_u32.to_be_bytes(), &[0xff]].concat();
        let bomb = vec![0; 100 * HEADERS_MAX];
        for (plain, why) in [
            (&[][..], "the headers end early"),
            (&[0, 0], "the headers end early"),
            (&too_many, "the headers end early"),
            (&too_long, "the headers end early"),
            (&not_text, "a header is not text"),
            (&bomb, "the headers are too large"),
        ] {
            let block = HeaderWriter::new().block(plain);
            assert_eq!(HeaderReader::default().read(&block).unwrap_err().0, why);
        }
        for block in [&[1, 2, 3][..], &[0x78, 0x20, 0, 0, 0, 1, 0], b"GET / HTTP/1.1"] {
            HeaderReader::default().read(block).unwrap_err();
        }
    }
}
