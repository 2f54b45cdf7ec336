//! One file in a ZIP archive, stored as it is (PKWARE's APPNOTE 6.3, sections 4.3.7, 4.3.12
//! and 4.3.16). Pure.

/// Of the parts of an archive.
const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
/// Version 2.0; names are UTF-8; stored; midnight of 1980-01-01.
const NEEDED: u16 = 20;
const UTF8: u16 = 1 << 11;
const STORED: u16 = 0;
const TIME: u16 = 0;
const DATE: u16 = 0x21;

/// The archive; `None` where name or content are larger than it can say.
pub(super) fn of(name: &str, content: &[u8]) -> Option<Vec<u8>> {
    let size = u32::try_from(content.len()).ok()?;
    let length = u16::try_from(name.len()).ok()?;
    let mut common = Vec::new();
    for field in [NEEDED, UTF8, STORED, TIME, DATE] {
        common.extend(field.to_le_bytes());
    }
    for field in [crc32(content), size, size] {
        common.extend(field.to_le_bytes());
    }
    common.extend(length.to_le_bytes());
    // No extra field.
    common.extend(0_u16.to_le_bytes());

    let mut out = Vec::with_capacity(content.len() + 2 * name.len() + 100);
    out.extend(LOCAL.to_le_bytes());
    out.extend(&common);
    out.extend(name.as_bytes());
    out.extend(content);
    let central = u32::try_from(out.len()).ok()?;
    out.extend(CENTRAL.to_le_bytes());
    out.extend(NEEDED.to_le_bytes());
    out.extend(&common);
    // Comment, disk, internal and external attributes, where the file begins.
    out.extend([0; 2 + 2 + 2 + 4 + 4]);
    out.extend(name.as_bytes());
    let end = u32::try_from(out.len()).ok()?;
    out.extend(END.to_le_bytes());
    // This disk, that of the directory.
    out.extend([0; 4]);
    for entries in [1_u16, 1] {
        out.extend(entries.to_le_bytes());
    }
    for field in [end - central, central] {
        out.extend(field.to_le_bytes());
    }
    out.extend([0; 2]);
    Some(out)
}

/// CRC-32 of ISO 3309.
fn crc32(content: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    let mut sum = u32::MAX;
    for byte in content {
        let [low, ..] = sum.to_le_bytes();
        sum = TABLE[usize::from(low ^ byte)] ^ (sum >> 8);
    }
    !sum
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    let mut start = 0_u32;
    while at < 256 {
        let mut sum = start;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 {
                0xedb8_8320 ^ (sum >> 1)
            } else {
                sum >> 1
            };
            bit += 1;
        }
        table[at] = sum;
        at += 1;
        start += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_the_one_that_everybody_checks_with() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_reader_that_begins_at_the_end_finds_the_file_and_its_sum() {
        let content = "{\"a\": 1}\n".repeat(1000);
        let archive = of("snapshot.json", content.as_bytes()).unwrap();
        let u32_at = |at: usize| u32::from_le_bytes(archive[at..at + 4].try_into().unwrap());
        let u16_at = |at: usize| u16::from_le_bytes(archive[at..at + 2].try_into().unwrap());
        let end = archive.len() - 22;
        assert_eq!((u32_at(end), u16_at(end + 10)), (END, 1));
        let (length, central) = (u32_at(end + 12) as usize, u32_at(end + 16) as usize);
        assert_eq!(central + length, end);
        assert_eq!(u32_at(central), CENTRAL);
        let name = u16_at(central + 28) as usize;
        assert_eq!(length, 46 + name);
        assert_eq!(&archive[central + 46..end], b"snapshot.json");
        let local = u32_at(central + 42) as usize;
        assert_eq!((local, u32_at(local)), (0, LOCAL));
        let begin = local + 30 + name;
        let size = u32_at(central + 24) as usize;
        assert_eq!(&archive[begin..begin + size], content.as_bytes());
        assert_eq!(begin + size, central);
        for sum in [u32_at(local + 14), u32_at(central + 16)] {
            assert_eq!(sum, crc32(content.as_bytes()));
        }
    }
}
