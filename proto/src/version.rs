//! Version strings of images.

/// Checks a version: 1 to 64 of `[A-Za-z0-9._+~-]`.
///
/// # Errors
/// A message that names the first wrong character or the wrong length.
pub fn check(version: &str) -> Result<(), String> {
    if version.is_empty() || version.len() > 64 {
        return Err(format!(
            "version {version:?}: expected 1 to 64 characters, found {}",
            version.len()
        ));
    }
    match version
        .chars()
        .find(|c| !(c.is_ascii_alphanumeric() || "._+~-".contains(*c)))
    {
        Some(c) => Err(format!(
            "version {version:?}: character {c:?} not allowed (letters, digits and . _ + ~ - are)"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_the_character_that_is_wrong() {
        assert!(super::check("1.0~rc1+b2_3-4").is_ok());
        assert!(super::check("v1;id").unwrap_err().contains("';'"));
        assert!(super::check("").is_err());
        assert!(super::check(&"1".repeat(65)).is_err());
    }
}
