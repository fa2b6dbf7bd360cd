//! Fields that are a number or a percentage, such as `maxSurge` and `minAvailable`.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The number itself, or the percentage of `total`, rounded with `round`.
pub(crate) fn resolve(
    value: &IntOrString,
    total: i32,
    round: fn(f64) -> f64,
) -> Result<i32, String> {
    match value {
        IntOrString::Int(number) => Ok(*number),
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|number| number.parse::<i32>().ok());
            let percent =
                percent.ok_or_else(|| format!("invalid value for IntOrString: {text}"))?;
            Ok(round(f64::from(total) * f64::from(percent) / 100.0) as i32)
        }
    }
}
