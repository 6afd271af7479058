#include "lockstep/checkpoint/pt_archive.h"

#include <zlib.h>

#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

PtArchive::PtArchive(std::span<const std::byte> bytes, const std::string& file)
    : bytes_(bytes), file_(file), members_(parse_zip_directory(bytes, file)) {
  for (const auto& [name, member] : members_) {
    constexpr std::string_view kPickle = "/data.pkl";
    if (name.ends_with(kPickle) && name.find('/') == name.size() - kPickle.size())
      prefix_ = name.substr(0, name.size() - kPickle.size() + 1);
    without_crc_ = without_crc_ && member.crc32 == 0;
  }
  if (prefix_.empty()) fail("is a zip archive without data.pkl, so torch.save did not write it");
  if (find("constants.pkl") != nullptr)
    fail("is a TorchScript archive, which holds code; give a file of torch.save(state_dict)");
  if (const ZipMember* order = find("byteorder"); order != nullptr && text(*order) != "little")
    fail("was written on a big-endian machine; write it again on a little-endian one");
}

std::string_view PtArchive::member(std::string_view name) const {
  const ZipMember* member = find(name);
  if (member == nullptr) fail("lacks its member " + shown(name) + "; the file is damaged");
  if (!member->stored) {
    fail("its member " + shown(name) +
         " is compressed, which torch.save does not do; unpack the archive and zip it with -0");
  }
  const std::string_view bytes = text(*member);
  // torch.serialization.set_crc32_options(False) leaves all checksums 0.
  if (!without_crc_ &&
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) != member->crc32) {
    fail("its member " + shown(name) + " has another CRC-32 than was written; the file is damaged");
  }
  return bytes;
}

uint64_t PtArchive::begin(std::string_view bytes) const {
  return static_cast<uint64_t>(reinterpret_cast<const std::byte*>(bytes.data()) - bytes_.data());
}

void PtArchive::fail(const std::string& what) const {
  throw CheckpointError(file_ + ": " + what);
}

const ZipMember* PtArchive::find(std::string_view name) const {
  const auto found = members_.find(std::string(prefix_) + std::string(name));
  return found == members_.end() ? nullptr : &found->second;
}

std::string_view PtArchive::text(const ZipMember& member) const {
  const auto part = bytes_.subspan(member.begin, member.size);
  return {reinterpret_cast<const char*>(part.data()), part.size()};
}

}  // namespace lockstep::inline v0
