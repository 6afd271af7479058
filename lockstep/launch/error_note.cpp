#include "lockstep/launch/error_note.h"

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::launch {
namespace {

constexpr size_t kMaxMessage = 2000;

std::string clipped(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text.size() > kMaxMessage) text = text.substr(0, kMaxMessage) + "...";
  return text;
}

bool flag(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

std::string word(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? clipped(found->get<std::string>()) : "";
}

}  // namespace

bool leave_error_note(const ErrorNote& note, const EnvLookup& env) {
  const auto path = env("TORCHELASTIC_ERROR_FILE");
  if (!path || !env("LOCKSTEP_STORE")) return false;
  const nlohmann::json json = {{"message", note.message},
                               {"complete", note.complete},
                               {"consequence", note.consequence},
                               {"device", note.device}};
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const UniqueFd file(::open(path->c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

ErrorNote error_note_of(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_object() && json.contains("message")) {
    const auto& message = json["message"];
    if (message.is_string())
      return {clipped(message.get<std::string>()), flag(json, "complete"),
              flag(json, "consequence"), word(json, "device")};
    if (message.is_object() && message.contains("message") && message["message"].is_string())
      return {.message = clipped(message["message"].get<std::string>())};
  }
  return {.message = clipped(std::string(text))};
}

}  // namespace lockstep::inline v0::launch
