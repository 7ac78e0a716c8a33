// What exponentials of float32 are computed with: e^x is 2^n e^r, where n is
// the integer nearest to x / ln 2, and e^r = 1 + r + r^2 (a polynomial of r).
// Included by kernel sources only.
#pragma once

namespace steelyard {

static constexpr float kLog2E = 0x1.715476p+0f;
// Their sum is ln 2; n times the first is exact.
static constexpr float kLn2 = 0x1.62e4p-1f, kLn2Rest = 0x1.7f7d1cp-20f;
static constexpr float kAnchor = 0x1.8p23f; // adding it rounds to an integer
static constexpr float kExpTerms[] = {0x1.fffffcp-2f, 0x1.55549p-3f,
                                      0x1.5558f8p-5f, 0x1.123b5ap-7f,
                                      0x1.6a2334p-10f};

} // namespace steelyard
