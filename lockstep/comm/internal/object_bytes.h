// Objects as bytes and back, with the limits of objects.h. Not a public header.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace lockstep::inline v0 {

// Throws InvalidArgument for an object that is too large or too deep.
std::vector<uint8_t> encode_object(const nlohmann::json& object);

// `from` is named in the error. Throws DataError when the bytes are not one whole object.
nlohmann::json decode_object(std::span<const uint8_t> bytes, const std::string& from);

}  // namespace lockstep::inline v0
