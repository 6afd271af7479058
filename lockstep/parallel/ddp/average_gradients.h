// average_gradients() under its former place.
#pragma once

#include "lockstep/replicas/average_gradients.h"
