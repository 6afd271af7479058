#include "lockstep/report/text_width.h"

#include <locale.h>
#include <wchar.h>

#include <algorithm>

namespace lockstep::inline v0 {
namespace {

// Selects the C library's width tables for this thread and this scope, whatever locale the program
// has chosen.
class Utf8Scope {
 public:
  Utf8Scope() : locale_(::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr)) {
    if (locale_ != nullptr) former_ = ::uselocale(locale_);
  }
  Utf8Scope(const Utf8Scope&) = delete;
  Utf8Scope& operator=(const Utf8Scope&) = delete;
  ~Utf8Scope() {
    if (locale_ == nullptr) return;
    ::uselocale(former_);
    ::freelocale(locale_);
  }

 private:
  locale_t locale_ = nullptr;
  locale_t former_ = nullptr;
};

// Walks through `text` until the next character would exceed `columns`; returns the bytes and
// columns walked.
struct Walked {
  size_t bytes = 0;
  size_t columns = 0;
};

Walked walk(std::string_view text, size_t columns) {
  Walked walked;
  if (std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; })) {
    walked.bytes = walked.columns = std::min(text.size(), columns);
    return walked;
  }
  const Utf8Scope utf8;
  mbstate_t state{};
  while (walked.bytes < text.size()) {
    wchar_t character = 0;
    size_t length =
        ::mbrtowc(&character, text.data() + walked.bytes, text.size() - walked.bytes, &state);
    int width = 1;
    if (length == static_cast<size_t>(-1) || length == static_cast<size_t>(-2)) {
      length = 1;
      state = {};
    } else {
      length = std::max<size_t>(length, 1);  // 0 means the character NUL
      width = std::max(0, ::wcwidth(character));
    }
    if (walked.columns + static_cast<size_t>(width) > columns) break;
    walked.bytes += length;
    walked.columns += static_cast<size_t>(width);
  }
  return walked;
}

}  // namespace

size_t display_width(std::string_view text) {
  return walk(text, static_cast<size_t>(-1) / 2).columns;
}

std::string_view fit_to_width(std::string_view text, size_t columns) {
  return text.substr(0, walk(text, columns).bytes);
}

bool has_chinese(std::string_view text) {
  // U+3400 to U+9FFF, the extension A and the unified ideographs: three bytes from E3 90 80 on.
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]),
               second = static_cast<unsigned char>(text[i + 1]);
    if ((first == 0xE3 && second >= 0x90) || (first >= 0xE4 && first <= 0xE9)) return true;
  }
  return false;
}

}  // namespace lockstep::inline v0
