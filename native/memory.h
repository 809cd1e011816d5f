// Memory that is large enough to care how it is mapped.
#pragma once

#include <cstddef>

namespace thinwire {

// Ask for huge pages for the part of [data, data + nbytes) that they fit in. Only a wish: streams of many megabytes then
// cost far fewer page faults and address look-ups.
void prefer_huge_pages(void* data, size_t nbytes);

}  // namespace thinwire
