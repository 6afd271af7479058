#include "lockstep/launch/etcd_protocol.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {
namespace {

using nlohmann::json;

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

[[noreturn]] void makes_no_sense() {
  throw StoreError("the answer of etcd makes no sense; is it one, of version 3.4 or newer?");
}

// 64-bit numbers are texts in the gateway's JSON; zeros are omitted.
int64_t number_of(const json& value, const char* name) {
  if (!value.contains(name)) return 0;
  const json& field = value.at(name);
  const auto number = parse_int(field.is_string() ? field.get<std::string>() : field.dump());
  if (!number) makes_no_sense();
  return *number;
}

template <typename Read>
auto read(std::string_view answer, Read read_from) {
  try {
    return read_from(json::parse(answer));
  } catch (const json::exception&) {
    makes_no_sense();
  }
}

json range(const std::string& key) {
  return {{"requestRange", {{"key", base64_encode(key)}}}};
}
json put(const std::string& key, const std::string& value, int64_t lease = 0) {
  json request = {{"key", base64_encode(key)}, {"value", base64_encode(value)}};
  if (lease != 0) request["lease"] = std::to_string(lease);
  return {{"requestPut", request}};
}
json created_at(const std::string& key, int64_t revision) {
  return {{"target", "CREATE"},
          {"key", base64_encode(key)},
          {"create_revision", std::to_string(revision)}};
}
EtcdCall transaction(json compare, json success, const EtcdKeys& keys) {
  const json value = {{"compare", std::move(compare)},
                      {"success", std::move(success)},
                      {"failure", json::array({range(keys.leader), range(keys.generation)})}};
  return {"/v3/kv/txn", value.dump()};
}

}  // namespace

std::string base64_encode(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j)
      group = group << 8 | (j < n ? static_cast<unsigned char>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += j <= n ? kAlphabet[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

std::string base64_decode(std::string_view text) {
  if (text.size() % 4 != 0) makes_no_sense();
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t group = 0;
    size_t n = 3;
    for (size_t j = 0; j < 4; ++j) {
      const char c = text[i + j];
      const size_t at = kAlphabet.find(c);
      const bool padding = c == '=' && j >= 2 && i + 4 == text.size();
      if (at == std::string_view::npos && !padding) makes_no_sense();
      if (padding) n = std::min(n, j - 1);
      group = group << 6 | static_cast<uint32_t>(padding ? 0 : at);
    }
    for (size_t j = 0; j < n; ++j) bytes += static_cast<char>(group >> (16 - 8 * j) & 255);
  }
  return bytes;
}

EtcdKeys etcd_keys(std::string_view run_id) {
  const std::string prefix = "/lockstep/" + std::string(run_id);
  return {prefix + "/leader", prefix + "/generation"};
}

EtcdCall etcd_log_in(const std::string& user, const std::string& password) {
  return {"/v3/auth/authenticate", json{{"name", user}, {"password", password}}.dump()};
}

EtcdCall etcd_look(const EtcdKeys& keys) {
  return transaction(json::array(), json::array({range(keys.leader), range(keys.generation)}),
                     keys);
}

EtcdCall etcd_grant(int64_t seconds) {
  return {"/v3/lease/grant", json{{"TTL", std::to_string(seconds)}}.dump()};
}

EtcdCall etcd_campaign(const EtcdKeys& keys, const std::string& value, int64_t lease) {
  return transaction(
      json::array({created_at(keys.leader, 0)}),
      json::array({put(keys.leader, value, lease), range(keys.leader), range(keys.generation)}),
      keys);
}

EtcdCall etcd_keep_alive(int64_t lease) {
  return {"/v3/lease/keepalive", json{{"ID", std::to_string(lease)}}.dump()};
}

EtcdCall etcd_claim(const EtcdKeys& keys, int generation, int64_t revision, int64_t seen) {
  const json unchanged = {{"target", "MOD"},
                          {"key", base64_encode(keys.generation)},
                          {"mod_revision", std::to_string(seen)}};
  return transaction(json::array({created_at(keys.leader, revision), unchanged}),
                     json::array({put(keys.generation,
                                      std::to_string(generation) + " " + std::to_string(revision)),
                                  range(keys.leader), range(keys.generation)}),
                     keys);
}

EtcdCall etcd_remove(const EtcdKeys& keys, int64_t revision) {
  const auto removed = [](const std::string& key) {
    return json{{"requestDeleteRange", {{"key", base64_encode(key)}}}};
  };
  return transaction(json::array({created_at(keys.leader, revision)}),
                     json::array({removed(keys.leader), removed(keys.generation)}), keys);
}

EtcdCall etcd_revoke(int64_t lease) {
  return {"/v3/lease/revoke", json{{"ID", std::to_string(lease)}}.dump()};
}

EtcdState read_etcd_state(std::string_view answer, const EtcdKeys& keys) {
  return read(answer, [&](const json& value) {
    EtcdState state;
    state.done = value.value("succeeded", false);
    state.revision = number_of(value.at("header"), "revision");
    for (const json& response : value.value("responses", json::array())) {
      if (!response.contains("response_range")) continue;
      for (const json& kv : response["response_range"].value("kvs", json::array())) {
        const std::string key = base64_decode(kv.at("key").get<std::string>());
        const std::string text = base64_decode(kv.value("value", ""));
        if (key == keys.leader) {
          state.leader = text;
          state.leader_revision = number_of(kv, "create_revision");
          state.leader_lease = number_of(kv, "lease");
        } else if (key == keys.generation) {
          const size_t space = std::min(text.find(' '), text.size());
          state.generation = static_cast<int>(
              parse_int(std::string_view(text).substr(0, space), 0, INT32_MAX).value_or(-1));
          state.generation_by =
              space < text.size() ? parse_int(std::string_view(text).substr(space + 1)).value_or(0)
                                  : 0;
          state.generation_revision = number_of(kv, "mod_revision");
        }
      }
    }
    return state;
  });
}

std::string read_etcd_token(std::string_view answer) {
  return read(answer, [](const json& value) { return value.at("token").get<std::string>(); });
}

int64_t read_etcd_lease(std::string_view answer) {
  return read(answer, [](const json& value) {
    const int64_t lease = number_of(value, "ID");
    if (lease == 0) makes_no_sense();
    return lease;
  });
}

bool read_etcd_kept_alive(std::string_view answer) {
  return read(answer, [](const json& value) { return number_of(value.at("result"), "TTL") > 0; });
}

EtcdError read_etcd_error(int status, std::string_view answer) {
  // gRPC's status codes.
  constexpr int kInvalid = 3, kNotFound = 5, kDenied = 7, kPrecondition = 9, kUnauthenticated = 16;
  EtcdError error;
  int code = 0;
  const json value = json::parse(answer, nullptr, false);
  if (value.is_object()) {
    error.text = value.value("error", "");
    code = value.value("code", 0);
  }
  if (error.text.empty())
    error.text = "HTTP status " + std::to_string(status) + ": " +
                 std::string(answer.substr(0, answer.find('\n')).substr(0, 100));
  // Users or roles have changed since the token was issued.
  const bool token_is_old = error.text.find("revision of auth store is old") != std::string::npos;
  error.token_expired = code == kUnauthenticated || token_is_old;
  // A missing lease is a normal answer; a missing path (404) is a permanent error.
  error.refused = (code == kInvalid && !token_is_old) || code == kDenied || code == kPrecondition ||
                  code == kUnauthenticated || (status == 404 && code != kNotFound);
  return error;
}

}  // namespace lockstep::inline v0::launch
