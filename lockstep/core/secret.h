// The job's secret, and the challenge by which two ends of a connection prove to each other that
// they know it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/deadline.h"
#include "lockstep/core/env.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// A shared secret of a job. Copyable; never printed by Lockstep.
class LOCKSTEP_API Secret {
 public:
  // 32 bytes from the system's random generator.
  static Secret generate();
  // Makes a secret of any non-empty text (hashed to a key), such as LOCKSTEP_SECRET and
  // options.secret.
  // Throws: InvalidArgument if empty.
  static Secret from_text(std::string_view text);
  // Reads LOCKSTEP_SECRET_FD (an inherited descriptor, read from offset 0 and left open),
  // LOCKSTEP_SECRET_FILE (must be readable by its owner only) or LOCKSTEP_SECRET, in this order;
  // nullopt when none is set.
  // Throws: InvalidArgument.
  static std::optional<Secret> from_env(const EnvLookup& env);

  // The text for from_text().
  const std::string& text() const { return text_; }

 private:
  explicit Secret(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

// The result of SHA-256.
using Digest = std::array<unsigned char, 32>;
LOCKSTEP_API Digest sha256(std::string_view data);  // of the bytes
// HMAC (RFC 2104).
LOCKSTEP_API Digest hmac_sha256(std::string_view key, std::string_view data);
// Compares in constant time.
LOCKSTEP_API bool equal(const Digest& a, const Digest& b);
// `count` bytes from the system's random generator.
LOCKSTEP_API std::string random_bytes(size_t count);
LOCKSTEP_API uint64_t random_word();                      // 8 of them
LOCKSTEP_API std::string to_hex(std::string_view bytes);  // two digits for each byte

}  // namespace lockstep::inline v0
