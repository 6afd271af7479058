#include <cmath>
#include <cstdlib>

#include "lockstep/cli/plan/job_report.h"
#include "lockstep/report/svg.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::cli {
namespace {

// Three digits that say something: 1.23, 12.3, 123.
std::string three_digits(double value) {
  const double size = std::abs(value);
  return fixed(value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

}  // namespace

std::string grouped(int64_t number) {
  std::string text = std::to_string(std::abs(number));
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return (number < 0 ? "-" : "") + text;
}

std::string count_text(double number) {
  if (number < 1e4) return fixed(number, 0);
  if (number < 1e6) return three_digits(number / 1e3) + " k";
  if (number < 1e9) return three_digits(number / 1e6) + " M";
  if (number < 1e12) return three_digits(number / 1e9) + " G";
  return three_digits(number / 1e12) + " T";
}

std::string bytes_text(double bytes) {
  const ByteUnit unit = byte_unit(std::abs(bytes));
  return three_digits(bytes / unit.bytes) + " " + unit.name;
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return three_digits(seconds * 1e6) + " us";
  if (seconds < 1) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds) + " s";
}

}  // namespace lockstep::inline v0::cli
