// JSON files, read member by member. An error is one line with the file, the member's place in it,
// its value and the remedy: "ds.json: optimizer.params.lr is \"high\"; give a number".
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lockstep::inline v0 {

// Throws the line as the caller's type of error.
using JsonRefusal = void (*)(const std::string& line);
template <typename Error>
void refuse_as(const std::string& line) {
  throw Error(line);
}

struct JsonSyntax {
  bool comments = false;  // are allowed
  bool once = false;      // keys must not repeat
};
// `source` names the file in messages. Refuses text that is not JSON.
nlohmann::json parse_json(std::string_view text, const std::string& source, JsonRefusal refusal,
                          JsonSyntax syntax = {});

// A value in a message: short and on one line, whatever the input.
std::string shown(const nlohmann::json& value);

// One object of a file. Null counts as absent. Refers to the JSON.
// Thread-safety: one thread at a time.
class JsonObject {
 public:
  // Refuses a value that is not an object. `place`: the object's place in the file ("model"); "":
  // the whole.
  JsonObject(const nlohmann::json& value, std::string source, JsonRefusal refusal,
             std::string place = "");

  const std::string& source() const { return source_; }
  const nlohmann::json& members() const { return *value_; }
  // A member in messages: "ds.json: optimizer.lr".
  std::string path(std::string_view key) const;
  std::string place(std::string_view key) const;  // without the file

  // "PATH is VALUE; give TAKES". For a missing one: "PATH is missing; give TAKES".
  [[noreturn]] void refuse(std::string_view key, const std::string& takes) const;
  // "PATH WHAT".
  [[noreturn]] void say(std::string_view key, const std::string& what) const;

  const nlohmann::json* find(std::string_view key) const;  // nullptr: absent
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const nlohmann::json& at(std::string_view key, const std::string& takes) const;

  // Each refuses another type of value; without a fallback also an absent one.
  JsonObject object(std::string_view key) const;
  JsonObject object_or_empty(std::string_view key) const;
  const nlohmann::json& list(std::string_view key) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  // Within [least, most]. 5e8 is also a whole number.
  int64_t whole(std::string_view key, int64_t least, int64_t most = kMostWhole) const;
  int64_t whole_or(int64_t fallback, std::string_view key, int64_t least,
                   int64_t most = kMostWhole) const;
  // `takes` describes the range in words; "": a number within it.
  double number(std::string_view key, double least, double most,
                const std::string& takes = "") const;
  double number_or(double fallback, std::string_view key, double least, double most,
                   const std::string& takes = "") const;

  static constexpr int64_t kMostWhole = 9'000'000'000'000'000;  // exactly representable in a double
  // As `most`, and -kAnyNumber as `least`: no limit.
  static constexpr double kAnyNumber = std::numeric_limits<double>::max();

 private:
  const nlohmann::json* value_;
  std::string source_;
  JsonRefusal refusal_;
  std::string place_;
};

// The same for a value that is not a member: `where` names it in messages. They refuse a value that
// does not fit.
int64_t whole_of(const nlohmann::json& value, const std::string& where, JsonRefusal refusal,
                 int64_t least, int64_t most = JsonObject::kMostWhole);
double number_of(const nlohmann::json& value, const std::string& where, JsonRefusal refusal,
                 double least, double most, const std::string& takes = "");
std::string text_of(const nlohmann::json& value, const std::string& where, JsonRefusal refusal);
bool flag_of(const nlohmann::json& value, const std::string& where, JsonRefusal refusal);

}  // namespace lockstep::inline v0
