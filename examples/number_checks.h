// Checks of an option's number. CLI11 has some, which print the greatest double with all its
// digits.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>

inline CLI::Validator number_check(bool zero_too, const std::string& name) {
  const auto check = [zero_too](const std::string& text) -> std::string {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = error == std::errc() && end == text.data() + text.size();
    if (number && (value > 0 || (zero_too && value == 0))) return "";
    return "is '" + text + "'; give a number " + (zero_too ? "of 0 or more" : "above 0");
  };
  return CLI::Validator(check, name);
}

inline CLI::Validator above_zero() {
  return number_check(false, "POSITIVE");
}
inline CLI::Validator zero_or_more() {
  return number_check(true, "NONNEGATIVE");
}
