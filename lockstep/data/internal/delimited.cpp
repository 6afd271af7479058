#include "lockstep/data/internal/delimited.h"

#include "lockstep/data/internal/packed_file.h"

namespace lockstep::inline v0::data {

bool DelimitedReader::at_line_end() const {
  const std::string_view rest = text_.substr(at_);
  return rest.empty() || rest.front() == '\n' || rest.starts_with("\r\n") || rest == "\r";
}

void DelimitedReader::end_line() {
  if (at_ < text_.size() && text_[at_] == '\r') ++at_;
  if (at_ < text_.size()) ++at_;
  ++line_;
}

std::string DelimitedReader::cell() {
  if (separator_ == ',' && at_ < text_.size() && text_[at_] == '"') return quoted_cell();
  const size_t begin = at_;
  while (!at_line_end() && text_[at_] != separator_) ++at_;
  return std::string(text_.substr(begin, at_ - begin));
}

std::string DelimitedReader::quoted_cell() {
  const int64_t opened = line_;
  const auto refuse = [&](const std::string& what) {
    refuse_file(name_, "line " + std::to_string(opened) + " " + what);
  };
  std::string value;
  for (++at_;; ++at_) {
    const size_t quote = text_.find('"', at_);
    if (quote == std::string_view::npos) refuse("opens a quote that no line closes");
    const std::string_view part = text_.substr(at_, quote - at_);
    for (const char c : part) line_ += c == '\n';
    value += part;
    at_ = quote + 1;
    if (at_ >= text_.size() || text_[at_] != '"') break;
    value += '"';
  }
  if (!at_line_end() && text_[at_] != separator_)
    refuse("has text after a closing quote; a quote within quotes is written twice");
  return value;
}

std::optional<DelimitedRecord> DelimitedReader::next() {
  while (at_ < text_.size() && at_line_end()) end_line();
  if (at_ >= text_.size()) return std::nullopt;
  DelimitedRecord record{.line = line_, .cells = {}};
  record.cells.push_back(cell());
  while (!at_line_end()) {
    ++at_;  // skips the separator
    record.cells.push_back(cell());
  }
  end_line();
  return record;
}

}  // namespace lockstep::inline v0::data
