#include "tests/cc/test.h"

// Of every program with TESTs.
int main(int argc, char** argv) { return tfring::testing::Main(argc, argv); }
