#include "lockstep/data/internal/text_files.h"

#include <algorithm>

namespace lockstep::inline v0::data {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kDevNames[] = {"dev", "validation", "valid", "val", "eval"};

bool names_a_part(std::string_view stem) {
  const auto begins = [&](std::string_view part) { return stem.starts_with(part); };
  return begins("train") || begins("test") ||
         std::any_of(std::begin(kDevNames), std::end(kDevNames), begins);
}

bool looks_like_texts(const fs::path& file) {
  const fs::path plain = file.extension() == ".gz" ? file.stem() : file;
  const std::string ending = plain.extension().string();
  for (const std::string_view rows : {".jsonl", ".tsv", ".csv", ".parquet", ".arrow"})
    if (ending == rows) return true;
  return (ending == ".txt" || ending == ".json") && names_a_part(plain.stem().string());
}

}  // namespace

std::optional<fs::path> part_file(const fs::path& directory, std::string_view part,
                                  std::span<const std::string_view> endings) {
  for (const std::string_view ending : endings) {
    fs::path file = directory / (std::string(part) + std::string(ending));
    if (fs::exists(file)) return file;
  }
  return std::nullopt;
}

std::optional<fs::path> dev_file(const fs::path& directory,
                                 std::span<const std::string_view> endings) {
  for (const std::string_view name : kDevNames)
    if (auto file = part_file(directory, name, endings)) return file;
  return std::nullopt;
}

std::vector<std::string> unread_files(const fs::path& directory,
                                      const std::vector<fs::path>& read) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const bool is_read = std::find(read.begin(), read.end(), entry.path()) != read.end();
    if (!is_read && entry.is_regular_file() && looks_like_texts(entry.path()))
      names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace lockstep::inline v0::data
