// Files of labelled texts. The first byte chooses the form.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/core/errors.h"
#include "lockstep/data/internal/text_rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  constexpr std::array<std::string_view, 5> kEndings = {"json", "jsonl", "tsv", "csv", "txt"};
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    lockstep::data::parse_text_rows(text, kEndings[data[0] % kEndings.size()], "fuzz");
  } catch (const lockstep::Error&) {
  }
  return 0;
}
