// LOCKSTEP_API marks what the shared library exports: the functions and classes of public headers.
//
// The rooms are compiled with -fvisibility=hidden, so what has no mark stays inside. A type that is
// thrown, or has virtual functions, needs the mark too: both sides must see one typeinfo. It stands
// after other attributes: `class [[nodiscard]] LOCKSTEP_API Work`.
#pragma once

#define LOCKSTEP_API [[gnu::visibility("default")]]
