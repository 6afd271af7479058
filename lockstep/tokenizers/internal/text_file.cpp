#include "lockstep/tokenizers/internal/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/core/utf8.h"

namespace lockstep::inline v0::tokenizers {

void refuse(std::string_view name, const std::string& what) {
  throw DataError(std::string(name) + ": " + what);
}

std::string line_of(std::string_view text, size_t position) {
  const auto before = text.substr(0, position);
  return "line " + std::to_string(std::count(before.begin(), before.end(), '\n') + 1);
}

std::string read_vocabulary_file(const std::filesystem::path& path) {
  constexpr off_t kLargest = 128 << 20;
  const std::string name = path.string();
  const UniqueFd fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) refuse(name, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode))
    refuse(name, "is not a file; give vocab.txt or tokenizer.json");
  if (status.st_size > kLargest)
    refuse(name, "is larger than 128 MiB, which no vocabulary is; give another file");
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse(name, std::string("cannot be read: ") + std::strerror(errno));
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  text.resize(have);
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return text;
}

nlohmann::json parse_file(std::string_view text, std::string_view name) {
  if (const auto at = malformed_utf8(text))
    refuse(name, line_of(text, *at) + " is not UTF-8; convert the file to UTF-8");
  return parse_json(text, std::string(name), refuse_as<DataError>);
}

std::string shown(std::string_view token) {
  constexpr size_t kMost = 40;
  std::string text(1, '"');
  text += printable(token, kMost);
  text += '"';
  return text;
}

}  // namespace lockstep::inline v0::tokenizers
