#include "lockstep/core/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/net.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {
namespace {

std::string read_secret_fd(int fd, const std::string& what) {
  std::string text(4096, '\0');
  ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  if (n < 0)
    throw InvalidArgument(what + " cannot be read: " + system_error("pread", errno).what());
  text.resize(static_cast<size_t>(n));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty()) throw InvalidArgument(what + " is empty: it must hold the job's secret");
  return text;
}

}  // namespace

Secret Secret::generate() {
  return Secret(to_hex(random_bytes(32)));
}

Secret Secret::from_text(std::string_view text) {
  if (text.empty())
    throw InvalidArgument("the job's secret is empty; give it at least one character");
  return Secret(std::string(text));
}

std::optional<Secret> Secret::from_env(const EnvLookup& env) {
  if (const auto fd = env_int(env, "LOCKSTEP_SECRET_FD", 0, 1 << 20)) {
    return Secret(
        read_secret_fd(static_cast<int>(*fd), "LOCKSTEP_SECRET_FD=" + std::to_string(*fd)));
  }
  if (const auto path = env("LOCKSTEP_SECRET_FILE")) {
    const std::string what = "LOCKSTEP_SECRET_FILE=" + *path;
    const UniqueFd file = [&path] {
      try {
        return open_named_file(*path);
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(std::string("LOCKSTEP_SECRET_FILE: ") + error.what());
      }
    }();
    struct stat info{};
    if (::fstat(file.get(), &info) != 0) throw system_error("fstat " + *path, errno);
    if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
      throw InvalidArgument(what + " can be read by others than its owner; run: chmod 600 " +
                            *path);
    }
    return Secret(read_secret_fd(file.get(), what));
  }
  if (const auto text = env("LOCKSTEP_SECRET")) return from_text(*text);
  return std::nullopt;
}

Digest sha256(std::string_view data) {
  Digest digest;
  unsigned int size = 0;
  const int ok = EVP_Digest(data.data(), data.size(), digest.data(), &size, EVP_sha256(), nullptr);
  LOCKSTEP_CHECK(ok == 1 && size == digest.size(), "OpenSSL has SHA-256");
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view data) {
  Digest digest;
  unsigned int size = 0;
  const unsigned char* result =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(data.data()), data.size(), digest.data(), &size);
  LOCKSTEP_CHECK(result != nullptr && size == digest.size(), "OpenSSL has HMAC-SHA-256");
  return digest;
}

bool equal(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1) {
    throw Error("the system's random generator failed; a job's secret cannot be made");
  }
  return bytes;
}

uint64_t random_word() {
  const std::string bytes = random_bytes(sizeof(uint64_t));
  uint64_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof word);
  return word;
}

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const unsigned char byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

}  // namespace lockstep::inline v0
