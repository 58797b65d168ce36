//! Links between files, as Markdown has them.

/// The target of a link from one file to another, both given by their paths below one directory.
pub(super) fn relative(from: &str, to: &str) -> String {
    let mut from: Vec<&str> = from.split('/').collect();
    // The name of the file itself.
    from.pop();
    let to: Vec<&str> = to.split('/').collect();
    let (_, parents) = to.split_last().unwrap_or((&"", &[]));
    let shared = from.iter().zip(parents).take_while(|(a, b)| a == b).count();
    let up = vec![".."; from.len() - shared];
    let parts: Vec<&str> = up.into_iter().chain(to[shared..].iter().copied()).collect();
    parts.join("/")
}

/// The path that a link in a file leads to, or nothing for one that leaves the directory.
pub(super) fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The targets of all links and pictures of a text that lead to files, without places within those.
pub(super) fn targets(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.split("](").skip(1);
    let targets = ends.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    let files = targets.filter(|target| !target.contains("://"));
    let files = files.map(|target| target.split('#').next().unwrap_or(target));
    files.filter(|target| !target.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_lead_back_to_their_target() {
        let files = ["A.md", "b/C.md", "b/d/e.svg", "b/f/g.svg"];
        for from in files {
            for to in files {
                let target = relative(from, to);
                assert_eq!(resolve(from, &target).as_deref(), Some(to), "{target}");
            }
        }
        assert_eq!(relative("b/C.md", "b/d/e.svg"), "d/e.svg");
        assert_eq!(relative("b/C.md", "A.md"), "../A.md");
        assert_eq!(resolve("A.md", "../bench"), None);
    }

    #[test]
    fn links_and_pictures_to_files_are_found() {
        let text = "[a](x.md) ![b](y/z.svg) [c](https://a.b) [d](x.md#part) [e](#part) (f)";
        let found: Vec<&str> = targets(text).collect();
        assert_eq!(found, ["x.md", "y/z.svg", "x.md"]);
    }
}
