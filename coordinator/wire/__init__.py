"""What coordinator and agents say to each other: the schema, and how it is carried."""
