//! Models in several files: which files belong together, and one table of what is in them.

use super::{Error, Gguf};

/// What stands between the number of a part and the count of parts in a file's name.
const OF: &str = "-of-";
/// Digits of both.
const DIGITS: usize = 5;

/// The names of all parts, if `name` is that of one: `NAME-00002-of-00003.gguf`.
pub fn part_names(name: &str) -> Option<Vec<String>> {
    let rest = name.strip_suffix(".gguf")?;
    let (rest, count) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    let rest = rest.strip_suffix(OF)?;
    let (rest, number) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    let stem = rest.strip_suffix('-')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<usize>().ok());
    let (number, count) = (digits(number)??, digits(count)??);
    let part = |number: usize| format!("{stem}-{number:0DIGITS$}{OF}{count:0DIGITS$}.gguf");
    (1..=count).contains(&number).then(|| (1..=count).map(part).collect())
}

/// The model that these parts are, in their order. The first has the metadata.
pub(super) fn join(parts: Vec<Gguf>) -> Result<Gguf, Error> {
    let count = parts.len();
    let mut parts = parts.into_iter().enumerate();
    let Some((_, mut all)) = parts.next() else {
        return Err(Error::NotGguf);
    };
    check(&all, 0, count)?;
    for (number, part) in parts {
        check(&part, number, count)?;
        for mut tensor in part.tensors {
            tensor.part = number;
            if all.by_name.insert(tensor.name.clone(), all.tensors.len()).is_some() {
                return Err(Error::DuplicateTensor(tensor.name));
            }
            all.tensors.push(tensor);
        }
    }
    match all.u32("split.tensors.count")? {
        Some(said) if count > 1 && said as usize != all.tensors.len() => {
            Err(Error::Parts(format!("they have {} tensors together, not {said}", all.tensors.len())))
        }
        _ => Ok(all),
    }
}

fn check(part: &Gguf, number: usize, count: usize) -> Result<(), Error> {
    let said_count = part.u32("split.count")?.unwrap_or(1).max(1);
    let said_number = part.u32("split.no")?.unwrap_or(0);
    if (said_number as usize, said_count as usize) == (number, count) {
        return Ok(());
    }
    if count == 1 {
        return Err(Error::Split { number: said_number.saturating_add(1), count: said_count });
    }
    let place = number + 1;
    Err(Error::Parts(format!("number {place} of {count} says that it is number {said_number} + 1 of {said_count}")))
}
